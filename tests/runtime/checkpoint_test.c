/* Checkpoints: a resumed run has the bits of an uninterrupted one, damage is passed over, signals
 * end cleanly. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/runtime/toy.h"

static void assert_same_file(const char *a, const char *b) {
    size_t n, m;
    char *x = file_get(a, &n), *y = file_get(b, &m);
    assert_non_null(x);
    assert_non_null(y);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* 3 steps an epoch, with one sample left over, shuffled. */
static char *make_data(void) {
    char *dir = temp_make();
    toy_data(dir, "train", 25);
    return dir;
}

static void expect_code(Run r, int code, const char *says) {
    if (r.code != code || (says && !strstr(r.err, says) && !strstr(r.out, says)))
        fail_msg("exit %d, '%s' '%s' lacks '%s'", r.code, r.out, r.err, says ? says : "");
    run_free(&r);
}

static void test_resume_has_the_same_bits(void **state) {
    (void)state;
    char *data = make_data();
    const char *whole = temp_path(data, "whole"), *parts = temp_path(data, "parts");
    expect_code(RUN(&toy_plan, "train", "--data", data, "--steps", "10", "--out", whole), 0, NULL);
    expect_code(RUN(&toy_plan, "train", "--data", data, "--steps", "4", "--out", parts,
                    "--save-every", "2"),
                0, NULL);
    expect_code(
        RUN(&toy_plan, "train", "--data", data, "--steps", "10", "--out", parts, "--resume"), 0,
        "going on from");
    assert_same_file(temp_path(whole, "model.safetensors"), temp_path(parts, "model.safetensors"));
    char *latest = file_get(temp_path(parts, "latest"), NULL);
    assert_string_equal(latest, "step-00000004\n");
    free(latest);
    /* The same step saved again takes the old folder's place. */
    expect_code(RUN(&toy_plan, "train", "--data", data, "--steps", "4", "--out", parts,
                    "--save-every", "4", "--quiet"),
                0, NULL);
    char *text = file_get(temp_path(parts, "step-00000004/state.json"), NULL);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_int_equal(json_integer_value(json_object_get(root, "samples")), 32);
    assert_int_equal(json_integer_value(json_object_get(root, "microbatches")), 8);
    json_decref(root);
    free(text);
    temp_remove(data);
}

static void damage(const char *path) {
    size_t count;
    char *bytes = file_get(path, &count);
    assert_non_null(bytes);
    bytes[count - 1] ^= 1;
    file_put(path, bytes, count);
    free(bytes);
}

static void test_damage_falls_back(void **state) {
    static const char *const files[] = {"step-00000006/model.safetensors",
                                        "step-00000006/optimizer.safetensors",
                                        "step-00000006/state.json"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char *data = make_data();
        const char *out = temp_path(data, "out"), *whole = temp_path(data, "whole");
        expect_code(RUN(&toy_plan, "train", "--data", data, "--steps", "8", "--out", whole), 0,
                    NULL);
        expect_code(RUN(&toy_plan, "train", "--data", data, "--steps", "6", "--out", out,
                        "--save-every", "3"),
                    0, NULL);
        if (i == 2)
            file_put(temp_path(out, files[i]), "{\"step\":6", 9);
        else
            damage(temp_path(out, files[i]));
        expect_code(
            RUN(&toy_plan, "train", "--data", data, "--steps", "8", "--out", out, "--resume"), 0,
            "is damaged and passed over");
        assert_same_file(temp_path(whole, "model.safetensors"),
                         temp_path(out, "model.safetensors"));
        temp_remove(data);
    }
}

static void test_refusals(void **state) {
    (void)state;
    char *data = make_data();
    const char *out = temp_path(data, "out");
    expect_code(RUN(&toy_plan, "train", "--data", data, "--resume"), 2, "--resume needs a folder");
    expect_code(RUN(&toy_plan, "train", "--data", data, "--out", out, "--resume"), 4,
                "holds no good checkpoint");
    expect_code(
        RUN(&toy_plan, "train", "--data", data, "--steps", "2", "--out", out, "--save-every", "1"),
        0, NULL);
    expect_code(RUN(&toy_plan, "train", "--data", data, "--out", out, "--resume", "--seed", "8"), 2,
                "--seed 8 differs from the seed 7");
    PlanParam params[2] = {toy_plan.param[0], toy_plan.param[1]};
    Plan other = toy_plan;
    other.param = params;
    params[1].name = "fc.shift";
    expect_code(RUN(&other, "train", "--data", data, "--out", out, "--resume"), 4,
                "unexpected  fc.bias");
    PlanProgram programs[2] = {toy_plan.program[0], toy_plan.program[1]};
    other = toy_plan;
    other.program = programs;
    programs[0].microbatches = 1;
    expect_code(RUN(&other, "train", "--data", data, "--out", out, "--resume"), 4,
                "was saved after 16 samples in 2 steps; this program takes 4 a step");
    expect_code(RUN(&toy_plan, "train", "--data", data, "--steps", "1", "--out", "/dev/null/x"), 5,
                NULL);
    expect_code(RUN(&toy_plan, "train", "--data", data, "--steps", "1", "--metrics", "/dev/full"),
                5, "could not write every record");
    expect_code(RUN(&toy_plan, "eval", "--data", data, "--weights", out), 4, "no images");
    expect_code(RUN(&toy_plan, "train", "--data", data, "--out", out, "--resume", "--no-shuffle"),
                2, "was trained without --no-shuffle");
    char single[300];
    snprintf(single, sizeof single, "--resume=%s/step-00000001", out);
    other = toy_plan;
    other.nstate = 2;
    other.train.optimizer = PLAN_OPTIM_adamw;
    other.region_bytes[PLAN_REGION_state] *= 2;
    expect_code(RUN(&other, "train", "--data", data, "--out", out, "--resume"), 4,
                "is the state of sgd; this program trains with adamw");
    expect_code(RUN(&toy_plan, "train", "--data", data, "--epochs", "1", single), 0,
                "going on from");
    toy_data(data, "train", 26);
    expect_code(RUN(&toy_plan, "train", "--data", data, "--out", out, "--resume"), 4,
                "was trained on 25 samples");
    toy_data(data, "train", 25);
    toy_data(data, "t10k", 5);
    expect_code(RUN(&toy_plan, "eval", "--data", data, "--weights", out), 0, "samples 5");
    temp_remove(data);
}

/* Starts a long run in a child process. */
static pid_t start(const char *data, const char *metrics, const char *err, const char *out) {
    char words[16][4096];
    char *argv[17] = {NULL};
    const char *const args[] = {
        "toy",       "train",        "--data",    data, "--steps", "1000000000",
        "--metrics", metrics,        "--threads", "1",  "--quiet", out ? "--out" : NULL,
        out,         "--save-every", "1"};
    int argc = 0;
    for (; argc < 15 && args[argc]; argc++) {
        snprintf(words[argc], sizeof words[0], "%s", args[argc]);
        argv[argc] = words[argc];
    }
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen(err, "w", stderr)) _exit(98);
        setenv("GOMP_SPINCOUNT", "1000", 1); /* or it would start this test program again */
        exit(inf_main(&toy_plan, argc, argv));
    }
    return child;
}

/* Waits until the run has written `bytes` of metrics. */
static void wait_for(const char *metrics, long bytes) {
    struct stat st = {0};
    for (int i = 0; i < 10000 && (stat(metrics, &st) != 0 || st.st_size < bytes); i++) usleep(1000);
    assert_true(st.st_size >= bytes);
}

/* Lets a run make some steps, sends a signal, and reads what it said. */
static char *run_and_signal(const char *data, const char *out, int number, int *code) {
    const char *err = temp_path(data, "err"), *metrics = temp_path(data, "metrics");
    pid_t child = start(data, metrics, err, out);
    wait_for(metrics, 2000);
    kill(child, number);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    *code = WEXITSTATUS(status);
    return file_get(err, NULL);
}

/* Killed at any instant while it saves after every step, a run leaves something to go on from. */
static void test_kill_at_any_instant(void **state) {
    (void)state;
    char *data = make_data();
    const char *out = temp_path(data, "out"), *metrics = temp_path(data, "metrics");
    for (int i = 0; i < 10; i++) {
        pid_t child = start(data, metrics, temp_path(data, "err"), out);
        wait_for(metrics, 1200);
        usleep((useconds_t)(i * 137));
        kill(child, SIGKILL);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        Run r = RUN(&toy_plan, "train", "--data", data, "--epochs", "1", "--out", out, "--resume");
        if (strstr(r.err, "damaged")) fail_msg("%s", r.err);
        expect_code(r, 0, "going on from");
        remove(metrics);
    }
    temp_remove(data);
}

static void test_signals_end_cleanly(void **state) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1};
    static const char *const names[] = {"SIGINT", "SIGTERM", "SIGUSR1"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char *data = make_data();
        const char *out = i ? temp_path(data, "out") : NULL;
        int code;
        char *err = run_and_signal(data, out, numbers[i], &code);
        assert_int_equal(code, 75);
        assert_non_null(strstr(err, names[i]));
        assert_non_null(strstr(err, out ? "saved in" : "nothing saved"));
        free(err);
        if (out)
            expect_code(
                RUN(&toy_plan, "train", "--data", data, "--epochs", "1", "--out", out, "--resume"),
                0, "going on from");
        temp_remove(data);
    }
}

/* No half-written file is left when a checkpoint cannot be finished. */
static void test_nothing_half_written(void **state) {
    (void)state;
    char *data = make_data();
    const char *out = temp_path(data, "out");
    mkdir(out, 0700);
    /* A file where the folder must go; and what killed runs left behind. */
    file_put(temp_path(out, "step-00000002"), "x", 1);
    mkdir(temp_path(out, ".step-00000001.tmp"), 0700);
    file_put(temp_path(out, ".step-00000001.tmp/model.safetensors.tmp.1"), "x", 1);
    file_put(temp_path(out, "latest.tmp.77"), "x", 1);
    expect_code(
        RUN(&toy_plan, "train", "--data", data, "--steps", "4", "--out", out, "--save-every", "2"),
        5, NULL);
    assert_null(file_get(temp_path(out, "latest"), NULL));
    DIR *d = opendir(out);
    for (struct dirent *entry = readdir(d); entry; entry = readdir(d))
        if (strstr(entry->d_name, ".tmp")) fail_msg("%s is left", entry->d_name);
    closedir(d);
    assert_null(file_get(temp_path(out, "model.safetensors"), NULL));
    temp_remove(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume_has_the_same_bits),
        cmocka_unit_test(test_damage_falls_back),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_signals_end_cleanly),
        cmocka_unit_test(test_kill_at_any_instant),
        cmocka_unit_test(test_nothing_half_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
