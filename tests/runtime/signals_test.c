/* signals_test.c - a signal interrupts no thread that computes: the matrix library's own use of the
 * stack pointer would let a handler write into the heap (signals.c).
 *
 * Each test is a child process, because what is installed stays.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka.h needs the four above
#include <cmocka.h>

#include "runtime/gemm.h"
#include "runtime/signals.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIDE = 96, STORM_MS = 700, BETWEEN_NS = 20000, THREADS = 3 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void install(void) {
    InfError e = {0};
    if (inf_signals_install(&e) != INF_OK) _exit(90);
}

static pid_t start(void (*run)(void)) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        run();
        _exit(0);
    }
    return child;
}

/* Exit codes as they are; -SIGNAL for a child that a signal ended. */
static int ended(pid_t child) {
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* --- products in a storm --- */

static float *numbers(size_t n, unsigned seed) {
    float *x = malloc(n * sizeof *x);
    if (!x) _exit(91);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 24) - 128.0f;
    }
    return x;
}

/* Products of changing form and depth, while blocks around their workspace come and go. */
static void multiply(void) {
    float *a = numbers(SIDE * SIDE, 1), *b = numbers(SIDE * SIDE, 2);
    float *c = numbers(SIDE * SIDE, 3), *want = numbers(SIDE * SIDE, 4);
    void *block[16] = {NULL};
    install();
    double end_ms = now_ms() + STORM_MS;
    for (unsigned turn = 0; now_ms() < end_ms; turn++) {
        int ta = turn & 1, tb = turn >> 1 & 1;
        int64_t m = SIDE - turn % 5 * 8, k = SIDE - turn % 7 * 8;
        for (int again = 0; again < 4; again++) {
            free(block[turn % 16]);
            block[turn % 16] = malloc(1000 + turn * 977 % 30000);
            inf_sgemm(ta, tb, m, SIDE, k, a, SIDE, b, SIDE, again ? c : want, SIDE, 0);
            if (again && memcmp(c, want, (size_t)m * SIDE * sizeof *c) != 0) _exit(92);
        }
    }
    for (int i = 0; i < 16; i++) free(block[i]);
    free(a), free(b), free(c), free(want);
    if (inf_signals_pending() != SIGTERM) _exit(93);
}

static void test_products_in_a_storm(void **state) {
    (void)state;
    const struct timespec pause = {.tv_nsec = BETWEEN_NS};
    pid_t child = start(multiply);
    siginfo_t over = {.si_pid = 0};
    usleep(20000); /* until it has installed */
    while (waitid(P_PID, (id_t)child, &over, WEXITED | WNOHANG | WNOWAIT) == 0 && !over.si_pid) {
        kill(child, SIGTERM);
        nanosleep(&pause, NULL);
    }
    assert_int_equal(ended(child), 0);
}

/* --- who takes them --- */

static uint64_t blocked_by(const char *task) {
    char path[64], line[256];
    uint64_t set = 0;
    snprintf(path, sizeof path, "/proc/self/task/%.20s/status", task);
    FILE *in = fopen(path, "re");
    if (!in) _exit(94);
    while (fgets(line, sizeof line, in))
        if (strncmp(line, "SigBlk:", 7) == 0) set = strtoull(line + 7, NULL, 16);
    fclose(in);
    return set;
}

static void count_takers(void) {
    static const int asks[] = {SIGINT, SIGTERM, SIGUSR1};
    uint64_t mask = 0;
    int threads = 0, takers = 0;
    for (int i = 0; i < 3; i++) mask |= UINT64_C(1) << (asks[i] - 1);
    install();
    install();
#pragma omp parallel num_threads(THREADS)
    {
#pragma omp barrier
    } usleep(20000);
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *t = d ? readdir(d) : NULL; t; t = readdir(d)) {
        if (t->d_name[0] == '.') continue;
        uint64_t blocked = blocked_by(t->d_name) & mask;
        threads++;
        takers += blocked == 0;
        if (blocked != 0 && blocked != mask) _exit(95);
        if (atoi(t->d_name) == getpid() && blocked != mask) _exit(96);
    }
    closedir(d);
    if (threads < 2 || takers != 1) _exit(97);
}

static void test_one_thread_takes_them(void **state) {
    (void)state;
    assert_int_equal(ended(start(count_takers)), 0);
}

/* --- what they do --- */

static void wait_long(void) {
    install();
    for (int i = 0; i < 500 && !inf_signals_pending(); i++) usleep(10000);
    int first = inf_signals_pending();
    usleep(5000000); /* stuck: only the second one ends it */
    _exit(first);
}

static void test_second_interrupt_ends_at_once(void **state) {
    (void)state;
    double begin_ms = now_ms();
    pid_t child = start(wait_long);
    for (int i = 0; i < 2; i++) {
        usleep(100000);
        kill(child, SIGINT);
    }
    assert_int_equal(ended(child), INF_STOPPED);
    assert_true(now_ms() - begin_ms < 4000);
}

static void stop(void) {
    install();
    for (int i = 0; i < 500 && !inf_signals_pending(); i++) usleep(10000);
    _exit(inf_signals_pending());
}

static void test_each_is_named(void **state) {
    static const int asks[] = {SIGINT, SIGTERM, SIGUSR1};
    (void)state;
    for (int i = 0; i < 3; i++) {
        pid_t child = start(stop);
        usleep(50000);
        kill(child, asks[i]);
        assert_int_equal(ended(child), asks[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_in_a_storm),
        cmocka_unit_test(test_one_thread_takes_them),
        cmocka_unit_test(test_second_interrupt_ends_at_once),
        cmocka_unit_test(test_each_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
