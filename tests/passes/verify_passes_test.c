/* verify_passes_test.c - the evaluator's comparison accepts what keeps the meaning and refuses what
 * does not: a wrong constant, a lost NaN, an output of another size. */
#include "passes/verify_passes.h"
#include "tests/passes/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const classifier = "param 0 \"w\" f32[3,4] init=ones\n"
                                      "graph train(%0: f32[2,3] data(0, \"x\"), %1: i32[2] data(1, "
                                      "\"t\"), %2: f32[3,4] weight(0)) {\n"
                                      "  %3 = matmul %0, %2 {ta=0, tb=0} : f32[2,4]\n"
                                      "  %4 = const {value=1} : f32[2,4]\n"
                                      "  %5 = mul %3, %4 : f32[2,4]\n"
                                      "  %6, %7 = cross_entropy %5, %1 {ignore=-1} : f32[], f32[]\n"
                                      "  return %6 loss_sum, %7 loss_count\n}\n";

static void test_passes_are_accepted(void **state) {
    (void)state;
    static bool (*const passes[])(PassContext *) = {
        pass_fold, pass_cse, pass_dce, pass_alias, pass_autodiff, pass_decompose, pass_cleanup};
    Check c;
    check_read(&c, classifier);
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        VerifyGraphs *before = verify_passes_before(c.m);
        check_pass(&c, passes[i]);
        verify_passes_after(before, c.m, "pass");
        verify_passes_free(before);
    }
    check_free(&c);
}

/* The exit code of comparing the module with one whose train graph is that of `text`. */
static int exit_code(const char *text, const char *changed) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        Check a, b;
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(9);
        check_read(&a, text);
        check_read(&b, changed);
        VerifyGraphs *before = verify_passes_before(a.m);
        verify_passes_after(before, b.m, "pass");
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_changes_are_refused(void **state) {
    (void)state;
    static const char *const text =
        "graph train(%0: f32[4] data(0, \"x\")) {\n  %1 = const {value=$O} : f32[4]\n"
        "  %2 = mul %0, %1 : f32[4]\n  return %2 output(0, \"y\")\n}\n";
    static const char *const longer =
        "graph train(%0: f32[4] data(0, \"x\")) {\n  %1 = concat %0, %0 {axis=0} : f32[8]\n"
        "  return %1 output(0, \"y\")\n}\n";
    Check names;
    check_empty(&names);
    const char *one = check_expand(&names, text, "", "1");
    assert_int_equal(exit_code(one, one), 0);
    assert_int_equal(exit_code(one, check_expand(&names, text, "", "1.001")), 3);
    assert_int_equal(exit_code(check_expand(&names, text, "", "nan"), one), 3);
    assert_int_equal(exit_code(one, longer), 3);
    check_free(&names);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes_are_accepted),
        cmocka_unit_test(test_changes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
