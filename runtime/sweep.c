/* sweep.c - removes what a killed mpirun of Open MPI leaves: names with its own process id, or its
 * job's number, in folders of this user. */
#include "runtime/sweep.h"

#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATTERN_BYTES = 4096, FOLDERS_OPEN = 16 };

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk) {
    (void)st, (void)type, (void)walk;
    remove(path);
    return 0;
}

static void remove_all(const char *pattern) {
    glob_t found;
    if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        nftw(found.gl_pathv[i], remove_one, FOLDERS_OPEN, FTW_DEPTH | FTW_PHYS);
    globfree(&found);
}

static const char *temporary(void) {
    static const char *const names[] = {"OMPI_MCA_orte_tmpdir_base", "TMPDIR", "TEMP", "TMP"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return value;
    }
    return "/tmp";
}

void inf_sweep_mpirun(pid_t mpirun, const char *job) {
    char pattern[PATTERN_BYTES];
    unsigned long number = strtoul(job, NULL, 10);
    snprintf(pattern, sizeof pattern, "%s/ompi.*.%ld/pid.%ld", temporary(), (long)getuid(),
             (long)mpirun);
    remove_all(pattern);
    snprintf(pattern, sizeof pattern, "%s/ompi.*.%ld", temporary(), (long)getuid());
    glob_t found;
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) rmdir(found.gl_pathv[i]); /* where empty */
        globfree(&found);
    }
    if (number == 0) return;
    snprintf(pattern, sizeof pattern, "/dev/shm/vader_segment.*.%ld.%lx.*", (long)getuid(), number);
    remove_all(pattern);
}
