/* What lodefs_spank.c takes of Slurm's header, for a test without Slurm. */
#include <stdint.h>
#define SPANK_PLUGIN(name, version) static const char *plugin_name = #name
typedef struct spank_handle *spank_t;
enum { ESPANK_SUCCESS, S_CTX_JOB_SCRIPT, S_CTX_SLURMD, S_JOB_ID, S_JOB_STEPID };
struct spank_option {
	char *name, *arginfo, *usage;
	int has_arg, val;
	int (*cb)(int, const char *, int);
};
static inline int spank_context(void) { return 0; }
static inline int spank_remote(spank_t spank) { return (void) spank, 1; }
static inline int spank_get_item(spank_t spank, int item, ...) { return (void) spank, item; }
static inline int spank_option_register(spank_t spank, struct spank_option *option)
{
	return (void) spank, (void) option, ESPANK_SUCCESS;
}
