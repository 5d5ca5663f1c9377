/* Runs the plug-in's child as slurmstepd does, and prints what tasks would be told. */
#include "lodefs_spank.c"

int main(int argc, char *argv[])
{
	(void) argc, (void) plugin_name;
	program = argv[1];
	enter(7);
	return printf("%s", problem) < 0;
}
