/* The command line: every subcommand's help, what a wrong flag is told, settings fixed at build. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/options.h"
#include "tests/runtime/toy.h"

static void test_values(void **state) {
    char words[][16] = {"toy",           "train",   "--lr=0.25", "--steps", "12",
                        "--on-nan=skip", "--quiet", "--resume",  "--data",  "a b"};
    char *argv[11] = {NULL};
    for (int i = 0; i < 10; i++) argv[i] = words[i];
    (void)state;
    InfError e = {0};
    InfOptions o;
    assert_int_equal(inf_options_parse(&e, &toy_plan, 10, argv, &o), INF_OK);
    assert_int_equal(o.command, CMD_train);
    assert_true(inf_option_real(&o, OPT_lr, 9) == 0.25);
    assert_int_equal(inf_option_whole(&o, OPT_steps, 9), 12);
    assert_int_equal(inf_option_whole(&o, OPT_epochs, 9), 9);
    assert_string_equal(inf_option_text(&o, OPT_on_nan, "stop"), "skip");
    assert_string_equal(inf_option_text(&o, OPT_data, ""), "a b");
    assert_true(inf_option_given(&o, OPT_resume));
    assert_string_equal(inf_option_text(&o, OPT_resume, "out"), "out");
    assert_true(inf_option_given(&o, OPT_quiet));
    assert_false(inf_option_given(&o, OPT_no_shuffle));
}

static void test_mistakes(void **state) {
    static const struct {
        const char *args[5];
        const char *says;
    } rows[] = {
        {{NULL}, "a command is needed"},
        {{"trian"}, "unknown command 'trian'; did you mean 'train'?"},
        {{"xyzzy"}, "unknown command 'xyzzy'; --help lists them"},
        {{"train", "--stps", "3"}, "unknown option '--stps' of train; did you mean '--steps'?"},
        {{"train", "--no-shufle"}, "did you mean '--no-shuffle'?"},
        {{"train", "--qqqqqqq"}, "unknown option '--qqqqqqq' of train; train --help lists them"},
        {{"eval", "--lr", "1"}, "--lr is an option of train, not of eval"},
        {{"train", "--steps", "0"}, "--steps needs a whole number of at least 1, got '0'"},
        {{"train", "--steps", "abc"}, "got 'abc'"},
        {{"train", "--steps", "3x"}, "got '3x'"},
        {{"train", "--steps=-5"}, "got '-5'"},
        {{"train", "--steps=99999999999999999999"}, "needs a whole number"},
        {{"train", "--steps="}, "needs a whole number"},
        {{"train", "--steps"}, "--steps needs an argument: --steps N"},
        {{"train", "--steps", "--quiet"}, "--steps needs an argument"},
        {{"train", "--lr", "nan"}, "--lr needs a finite number of at least 0, got 'nan'"},
        {{"train", "--lr", "inf"}, "finite number"},
        {{"train", "--lr", "-1"}, "finite number"},
        {{"verify", "--tolerance", "0"}, "--tolerance needs a finite number above 0"},
        {{"train", "--on-nan=maybe"}, "--on-nan needs one of stop|skip, got 'maybe'"},
        {{"train", "--on-nan=sto"}, "--on-nan needs one of"},
        {{"train", "--quiet=1"}, "--quiet takes no argument"},
        {{"train", "--quiet", "--quiet"}, "--quiet is given twice"},
        {{"train", "--out="}, "--out needs a DIR"},
        {{"train", "stray"}, "unexpected argument 'stray'"},
        {{"train", "--B", "8"}, "B is fixed at build time: infinic toy.it -D train.B=8"},
        {{"train", "--B=8"}, "B is fixed at build time: infinic toy.it -D train.B=8"},
        {{"train", "--microbatches", "4"},
         "microbatches is fixed at build time: infinic toy.it -D train.microbatches=4"},
        {{"train", "--train.optimizer=adam"},
         "train.optimizer is fixed at build time: infinic toy.it -D train.optimizer=adam"},
        {{"eval", "--eval.B", "7"}, "eval.B is fixed at build time: infinic toy.it -D eval.B=7"},
        {{"train", "--B"}, "B is fixed at build time: infinic toy.it -D train.B=4"},
        {{"train", "B=8"}, "B is fixed at build time: infinic toy.it -D train.B=8"},
        {{"train", "-D", "train.B=8"},
         "-D is an option of the compiler: infinic toy.it -D train.B=8"},
        {{"train", "-Dtrain.B=8"}, "infinic toy.it -D train.B=8"},
        {{"train", "--save-every", "5"}, "--save-every needs --out DIR"},
        {{"train", "--weight-decay=0.1"}, "no parameter of this program decays"},
        {{"verify"}, "verify needs --ref FILE"},
        {{"schedule", "--format=pdf"}, "--format needs one of table|csv|json|svg|trace"},
        {{"params", "--prefix", "nothing.here"}, "no parameter lies below 'nothing.here'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Run r = run_plan(&toy_plan, rows[i].args);
        if (r.code != 2 || !strstr(r.err, rows[i].says))
            fail_msg("row %zu: exit %d, '%s' lacks '%s'", i, r.code, r.err, rows[i].says);
        assert_string_equal(r.out, "");
        run_free(&r);
    }
}

static void test_help(void **state) {
    static const char *const names[] = {"train",    "eval",  "params", "info",
                                        "schedule", "bench", "verify"};
    (void)state;
    Run r = RUN(&toy_plan, "--help");
    assert_int_equal(r.code, 0);
    assert_string_equal(r.err, "");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_non_null(strstr(r.out, names[i]));
    run_free(&r);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int form = 0; form < 2; form++) {
            r = RUN(&toy_plan, names[i], form ? "-h" : "--help");
            assert_int_equal(r.code, 0);
            assert_string_equal(r.err, "");
            assert_non_null(strstr(r.out, names[i]));
            assert_non_null(strstr(r.out, "--help"));
            run_free(&r);
        }
    r = RUN(&toy_plan, "--version");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "infinic 0.1.0"));
    run_free(&r);
}

static void test_nearest(void **state) {
    static const char *const names[] = {"alpha", "beta", "gamma"};
    (void)state;
    assert_string_equal(inf_nearest_name("alhpa", names, 3), "alpha");
    assert_string_equal(inf_nearest_name("bet", names, 3), "beta");
    assert_null(inf_nearest_name("omega_far", names, 3));
    assert_null(inf_nearest_name("x", names, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
