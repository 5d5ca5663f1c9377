/* --lodefs=REPO@REV:DIR for srun, sbatch and salloc: shows a job's datasets on their directories.
 *
 * Only what needs to be in Slurm's processes is here. Revisions are fixed by cli_filter.lua, mounts
 * made by the prolog; `lodefs slurm enter` decides what a step is shown, and says what is wrong.
 *
 * plugstack.conf: optional /usr/lib/.../lodefs_spank.so [lodefs=/usr/bin/lodefs] [jobs=/run/lodefs/jobs]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(lodefs, 1);

#ifndef ENTER_TIMEOUT_MS
#define ENTER_TIMEOUT_MS 60000
#endif
#define KILL_TIMEOUT_MS 5000
#define BATCH_SCRIPT 0xfffffffbU /* SLURM_BATCH_SCRIPT of slurm.h */

static const char *program = "/usr/bin/lodefs", *jobs = "/run/lodefs/jobs";
static char *asked;             /* what the step's own option says */
static char problem[4096];      /* why the step sees no datasets */

static int take(int value, const char *words, int remote)
{
	(void) value, (void) remote;
	free(asked);
	asked = words ? strdup(words) : NULL;
	return 0;
}

static struct spank_option option = {
	"lodefs", "REPO@REV[:PATH]:DIR[:rw][,...][,commit=WHEN]",
	"show datasets of lodefs, each on its (empty) directory DIR: read-only, or with :rw for changes, "
	"which are committed on-success, always or never", 1, 0, take
};

int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	for (int n = 0; n < argc; n++) {
		if (!strncmp(argv[n], "lodefs=", 7))
			program = argv[n] + 7;
		else if (!strncmp(argv[n], "jobs=", 5))
			jobs = argv[n] + 5;
	}
	if (spank_context() == S_CTX_JOB_SCRIPT || spank_context() == S_CTX_SLURMD)
		return 0;
	return spank_option_register(spank, &option) == ESPANK_SUCCESS ? 0 : -1;
}

/* The child: root, in the step's mount namespace. Nothing of the user's environment comes along. */
static void become_lodefs(uint32_t job, int error_fd)
{
	char number[32];
	char *argv[] = { (char *) program, "slurm", "enter", "--asked", asked ? asked : "", NULL };
	char *envp[] = { number, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			 "HOME=/", "LC_ALL=C.UTF-8", NULL };
	int null_fd = open("/dev/null", O_RDWR);

	snprintf(number, sizeof(number), "SLURM_JOB_ID=%u", job);
	dup2(null_fd, 0), dup2(null_fd, 1), dup2(error_fd, 2);
	if (chdir("/") == 0)
		execve(program, argv, envp);
	dprintf(2, "lodefs: error: %s cannot be run\n", program);
	_exit(127);
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000L + now.tv_nsec / 1000000;
}

/* Keeps what a pipe has, as far as there is room, and drops the rest; whether more may come. */
static int keep(int fd, size_t *have)
{
	char rest[512];
	int room = *have < sizeof(problem) - 1;
	ssize_t got = room ? read(fd, problem + *have, sizeof(problem) - 1 - *have)
			   : read(fd, rest, sizeof(rest));

	*have += room && got > 0 ? (size_t) got : 0;
	return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Whether the child has ended, within a time. Who else has its pipe, or that it closed it, changes
 * nothing; and a child that cannot be killed now (a disk that hangs) is left to Slurm. */
static int ends_within(pid_t child, long time_ms, struct pollfd *pipe, size_t *have, int *status)
{
	long until = now_ms() + time_ms;
	pid_t ended;

	while (!(ended = waitpid(child, status, WNOHANG)) && now_ms() < until)
		if (poll(pipe, 1, 10) > 0 && !keep(pipe->fd, have))
			pipe->fd = -1;
	return ended != 0;
}

/* What it says is kept for the tasks. It has a time limit: a hung step would drain the node. */
static void enter(uint32_t job)
{
	int ends[2], status = -1;
	size_t have = 0;
	struct pollfd said = { .events = POLLIN };
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) || (child = fork()) < 0) {
		snprintf(problem, sizeof(problem), "lodefs: error: no process can be started\n");
		return;
	}
	if (!child) {
		setpgid(0, 0);
		become_lodefs(job, ends[1]);
	}
	close(ends[1]);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	said.fd = ends[0];
	if (!ends_within(child, ENTER_TIMEOUT_MS, &said, &have, &status)) {
		kill(-child, SIGKILL), kill(child, SIGKILL);
		ends_within(child, KILL_TIMEOUT_MS, &said, &have, &status);
		status = -1;
	}
	for (size_t before = -1; have != before; )
		before = have, keep(ends[0], &have);
	close(ends[0]);
	if (status == 0)
		problem[0] = '\0'; /* warnings are for nobody */
	else if (!problem[0])
		snprintf(problem, sizeof(problem), "lodefs: error: the datasets cannot be shown\n");
}

/* slurmstepd, as root, before it starts tasks. Never fails: that could drain the node. */
int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
	char record[4096];
	uint32_t job, step = 0;

	(void) argc, (void) argv;
	if (!spank_remote(spank) || spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return 0;
	spank_get_item(spank, S_JOB_STEPID, &step);
	snprintf(record, sizeof(record), "%s/%u.json", jobs, job);
	if ((!asked && access(record, F_OK)) || step > BATCH_SCRIPT)
		return 0; /* a job without datasets, or a step without tasks */
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL)
	    || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		snprintf(problem, sizeof(problem), "lodefs: error: no mount namespace can be made\n");
	else
		enter(job);
	return 0;
}

/* Each task, as the user, its standard error open. */
int slurm_spank_task_init(spank_t spank, int argc, char *argv[])
{
	(void) spank, (void) argc, (void) argv;
	if (!problem[0])
		return 0;
	dprintf(2, "%s", problem);
	_exit(1);
}
