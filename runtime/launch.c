/* launch.c - runs mpirun with this executable and waits: relays, passes signals on, and finds the
 * exit code.
 *
 * Reads   what the ranks tell through a socket, and what mpirun prints.
 * Writes  the ranks' output to our own, without mpirun's remarks on a failure that the ranks
 *         explain themselves; the first cause on stderr, once.
 * Hosts   ranks on other hosts cannot reach the socket: what they tell is a line on stderr, which
 *         relay.c finds. mpirun passes SIGUSR1 on to them, and is ended when they have ended: by
 *         itself it would wait for ever.
 * Why     mpirun runs so that it does not kill the survivors of a dead rank, and then its own exit
 *         code says nothing.
 */
#include "runtime/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/engine.h"
#include "runtime/relay.h"
#include "runtime/signals.h"
#include "runtime/sweep.h"

enum { TELL_MAGIC = 0x696e6672, TELL_BYTES_MAX = 32000, WORDS_MAX = 24, PIPE_BYTES = 1 << 16 };

/* After the first cause, a death or a rank that gives up: until ranks that are left are killed;
 * that mpirun has to end when asked; after its end, for what it has written. */
enum { LEAVE_MS = 1500, FIRST_MS = 6000, TERM_MS = 4000, DRAIN_MS = 1000, TICK_MS = 100 };

enum { AWAY = -1 };

typedef struct TellHead {
    uint32_t magic;
    int32_t what, rank, code, pid, early;
} TellHead;

typedef struct Tell {
    TellHead head;
    char text[TELL_BYTES_MAX + 1];
} Tell;

typedef struct Launcher {
    const char *program;
    int ranks;
    pid_t mpirun;
    int status; /* of mpirun, when it is over */
    bool over;
    int inbox, alarm, out; /* what ranks tell; signals; mpirun's stdout */
    InfRelay err;          /* mpirun's stderr */
    pid_t *pid;            /* of each rank that has told; else 0; AWAY on another host */
    bool away;             /* some are on other hosts */
    int ender;             /* the signal that asks mpirun to end */
    bool caused, early, ended;
    int rank, end_code, out_errno;
    InfCode code;
    char *text;
    int asked;      /* the signal that was passed on */
    int interrupts; /* SIGINT's so far */
    int kills;      /* 1: the ranks were killed; 2: mpirun was asked to end */
    double kill_at_ms;
    char **words; /* of the command, ended by NULL */
    int nwords;
    char job[64]; /* mpirun's name for it */
    char *joined, number[16], self[PATH_MAX], path[PATH_MAX];
} Launcher;

/* --- the ranks' side --- */

static void job_name(char *out, size_t bytes) {
    const char *job = getenv("INFINIC_JOB");
    snprintf(out, bytes, "infinic-job-%.64s", job ? job : "");
}

/* The launcher, on another host, finds this line in what mpirun passes on. */
static void tell_by_stream(const TellHead *t, const char *text) {
    char line[INF_RELAY_LINE_MAX];
    bool here = t->what == INF_TELL_here; /* else the rank prints the text itself */
    int n = snprintf(line, sizeof line, "%c%s %d %d %d %d %.200s\n", INF_RELAY_MARK,
                     getenv("INFINIC_JOB"), t->what, t->rank, t->code, t->early,
                     here && *text ? text : "-");
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0) errno = 0;
}

bool inf_launch_tell(InfTold told) {
    struct sockaddr_un to;
    char name[96];
    const char *text = told.text ? told.text : "";
    size_t length = strnlen(text, TELL_BYTES_MAX);
    TellHead head = {TELL_MAGIC,         (int32_t)told.what, told.rank,
                     (int32_t)told.code, (int32_t)getpid(),  told.early};
    if (!getenv("INFINIC_JOB")) return false;
    job_name(name, sizeof name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    struct timeval limit = {.tv_sec = 1};
    char *bytes = malloc(sizeof head + length);
    bool ok = bytes && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0;
    if (ok) {
        memcpy(bytes, &head, sizeof head);
        memcpy(bytes + sizeof head, text, length);
        ok = sendto(fd, bytes, sizeof head + length, MSG_NOSIGNAL, (struct sockaddr *)&to,
                    inf_abstract_address(name, &to)) > 0;
    }
    if (!ok) tell_by_stream(&head, text);
    free(bytes);
    close(fd);
    return ok;
}

/* --- the launcher's side: what ranks tell --- */

static InfCode open_inbox(InfError *e, Launcher *l) {
    unsigned char random[16];
    char job[2 * sizeof random + 1], name[96];
    struct sockaddr_un at;
    int on = 1;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return inf_fail_errno(e, "getrandom", "starting the ranks");
    for (size_t i = 0; i < sizeof random; i++) snprintf(job + 2 * i, 3, "%02x", random[i]);
    if (setenv("INFINIC_JOB", job, 1) != 0) return inf_fail_errno(e, "setenv", "INFINIC_JOB");
    job_name(name, sizeof name);
    l->inbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->inbox < 0 || setsockopt(l->inbox, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
        return inf_fail_errno(e, "socket", "starting the ranks");
    if (bind(l->inbox, (struct sockaddr *)&at, inf_abstract_address(name, &at)) != 0)
        return inf_fail_errno(e, "bind", "starting the ranks");
    return INF_OK;
}

/* A datagram from a process of ours: its bytes in `at`, ended by 0; or -1. */
static ssize_t receive(int fd, char *at, size_t bytes) {
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec part = {at, bytes - 1};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof control.space};
    struct ucred from = {.uid = (uid_t)-1};
    ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_type == SCM_CREDENTIALS) memcpy(&from, CMSG_DATA(c), sizeof from);
    at[n] = '\0';
    return from.uid == getuid() ? n : 0;
}

static void pass_on(Launcher *l, int number) {
    for (int r = 0; r < l->ranks; r++)
        if (l->pid[r] > 0) kill(l->pid[r], number);
}

/* A signal that asks the ranks to stop. They agree on it, so it need not reach all. */
static void ask(Launcher *l, int number) {
    bool near = false;
    for (int r = 0; r < l->ranks; r++) near = near || l->pid[r] > 0;
    pass_on(l, number);
    if (!near && l->away) kill(l->mpirun, SIGUSR1);
}

static void take_told(Launcher *l, const TellHead *t, const char *text) {
    switch ((InfTell)t->what) {
    case INF_TELL_here:
        if (t->rank < 0 || t->rank >= l->ranks) return;
        l->pid[t->rank] = t->pid;
        l->away = l->away || t->pid == AWAY;
        snprintf(l->job, sizeof l->job, "%.63s", text);
        if (l->asked) ask(l, l->asked);
        break;
    case INF_TELL_cause:
        if (l->caused || l->ended) return;
        l->caused = true;
        l->early = t->early;
        l->rank = t->rank;
        l->code = (InfCode)t->code;
        l->text = strdup(text);
        l->kill_at_ms = inf_clock_ms() + (l->rank == INF_NO_RANK || l->away ? LEAVE_MS : FIRST_MS);
        break;
    case INF_TELL_end:
        if (l->caused) return;
        l->ended = true;
        l->end_code = t->code;
        if (l->away && t->code != INF_OK) l->kill_at_ms = inf_clock_ms() + LEAVE_MS;
        break;
    }
}

static void read_inbox(Launcher *l) {
    static Tell in; /* too large for a stack */
    for (ssize_t n; (n = receive(l->inbox, (char *)&in, sizeof in)) >= 0;)
        if ((size_t)n >= sizeof in.head && in.head.magic == TELL_MAGIC)
            take_told(l, &in.head, in.text);
}

/* A line of tell_by_stream; one of another job is dropped. */
static void read_line(void *of, const char *line) {
    TellHead t = {.pid = AWAY};
    char job[INF_RELAY_LINE_MAX], text[INF_RELAY_LINE_MAX];
    const char *own = getenv("INFINIC_JOB");
    int early = 0;
    if (sscanf(line, "%511s %d %d %d %d %511s", job, &t.what, &t.rank, &t.code, &early, text) != 6)
        return;
    t.early = early;
    if (own && strcmp(job, own) == 0) take_told(of, &t, strcmp(text, "-") == 0 ? "" : text);
}

/* --- signals, and ranks that do not end --- */

static void read_alarm(Launcher *l) {
    struct signalfd_siginfo s;
    while (read(l->alarm, &s, sizeof s) == (ssize_t)sizeof s) {
        int number = (int)s.ssi_signo;
        if (number == SIGCHLD) {
            l->over = l->over || waitpid(l->mpirun, &l->status, WNOHANG) == l->mpirun;
        } else if (number == SIGTSTP) {
            pass_on(l, SIGSTOP);
            raise(SIGSTOP);
            pass_on(l, SIGCONT);
        } else {
            l->asked = number;
            l->interrupts += number == SIGINT;
            ask(l, number);
            if (l->interrupts != 2) continue;
            l->err.mute = true; /* ends at once, without a word */
            l->kill_at_ms = inf_clock_ms() + DRAIN_MS;
        }
    }
}

static bool all_have_told(const Launcher *l) {
    for (int r = 0; r < l->ranks; r++)
        if (l->pid[r] == 0) return false;
    return true;
}

/* What is still there long after the first cause hangs, or is stopped. mpirun cleans up after
 * itself when it is asked once; asked twice, it just ends. */
static void end_the_rest(Launcher *l) {
    if (l->over || l->kill_at_ms <= 0 || inf_clock_ms() < l->kill_at_ms) return;
    pass_on(l, SIGKILL);
    if (l->kills == 0 && all_have_told(l) && !l->away)
        l->kills = 1; /* it ends when they have */
    else if (l->kills <= 1)
        kill(l->mpirun, l->ender), l->kills = 2;
    else
        kill(l->mpirun, SIGKILL);
    l->kill_at_ms = inf_clock_ms() + (l->kills == 1 ? LEAVE_MS : TERM_MS);
}

/* --- output --- */

/* Everything there is; false at the end of the stream. */
static bool relay_out(Launcher *l) {
    char bytes[PIPE_BYTES];
    for (ssize_t n; (n = read(l->out, bytes, sizeof bytes)) != 0;) {
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        for (ssize_t done = 0, w; done < n && l->out_errno == 0; done += w) {
            w = write(STDOUT_FILENO, bytes + done, (size_t)(n - done));
            if (w < 0 && errno == EINTR) w = 0;
            if (w < 0) l->out_errno = errno, w = 0;
        }
    }
    return false;
}

static void run(Launcher *l) {
    bool out_open = true, err_open = true;
    double over_ms = 0;
    while (!l->over || out_open || err_open) {
        struct pollfd p[] = {{.fd = l->inbox, .events = POLLIN},
                             {.fd = l->alarm, .events = POLLIN},
                             {.fd = out_open ? l->out : -1, .events = POLLIN},
                             {.fd = err_open ? l->err.fd : -1, .events = POLLIN}};
        poll(p, sizeof p / sizeof *p, TICK_MS);
        if (p[2].revents) out_open = relay_out(l);
        if (p[3].revents) err_open = inf_relay_read(&l->err);
        read_inbox(l);
        read_alarm(l);
        end_the_rest(l);
        if (l->over && over_ms == 0) over_ms = inf_clock_ms();
        if (l->over && inf_clock_ms() - over_ms > DRAIN_MS)
            break; /* someone else holds the pipes */
    }
    read_inbox(l);
}

/* --- starting mpirun --- */

static bool find_on_path(const char *name, char *out) {
    const char *path = getenv("PATH");
    for (const char *at = path ? path : "/usr/bin:/bin"; at;) {
        size_t n = strcspn(at, ":");
        int length = snprintf(out, PATH_MAX, "%.*s%s%s", (int)n, at, n ? "/" : "", name);
        if (length > 0 && length < PATH_MAX && access(out, X_OK) == 0) return true;
        at = at[n] == ':' ? at + n + 1 : NULL;
    }
    return false;
}

static InfCode find_mpirun(InfError *e, const char *mpi, int ranks, char *out) {
    static const char *const open_mpi[] = {"mpirun.openmpi", "mpirun", "mpiexec", NULL};
    static const char *const others[] = {"mpiexec.mpich", "mpiexec.hydra", "mpiexec", NULL};
    bool open = strcmp(mpi, "Open MPI") == 0;
    for (const char *const *name = open ? open_mpi : others; *name; name++)
        if (find_on_path(*name, out)) return INF_OK;
    return inf_fail(e, INF_IO,
                    "there is no %s on the PATH to start the %d ranks with\n  = hint: install %s "
                    "(Debian, Ubuntu: apt-get install %s)",
                    open ? "mpirun" : "mpiexec", ranks, mpi, open ? "openmpi-bin" : "mpich");
}

static void set_default(const char *name, const char *value) {
    if (!getenv(name)) setenv(name, value, 0);
}

/* Whether mpirun may take other hosts than this one. */
static bool may_have_hosts(void) {
    static const char *const names[] = {
        "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE", "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_pml"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return true;
    return false;
}

static void set_environment(void) {
    char from = 1, to = 0;
    struct iovec a = {&to, 1}, b = {&from, 1};
    /* Where reading another process's memory is forbidden (containers), Open MPI must not try. */
    if (process_vm_readv(getpid(), &a, 1, &b, 1, 0) != 1)
        set_default("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    /* Looking for fast networks is a third of the start. */
    if (!may_have_hosts()) set_default("OMPI_MCA_pml", "ob1");
    /* The launcher passes a progress line on as it comes (progress.c). */
    if (isatty(STDERR_FILENO)) set_default("INFINIC_TERMINAL", "1");
    set_default("OMPI_MCA_mpi_yield_when_idle", "1");
    set_default("GOMP_SPINCOUNT", "1000"); /* as entry.c does; saves each rank a second start */
}

static void add_word(Launcher *l, const char *word) {
    memcpy(&l->words[l->nwords++], &word, sizeof word);
}

/* `--flag :` as `--flag=:`, because a lone ":" would begin another program for mpirun. */
static InfCode add_arguments(InfError *e, Launcher *l, char **argv) {
    for (int i = 1; argv[i]; i++) {
        bool colon = argv[i + 1] && strcmp(argv[i + 1], ":") == 0;
        if (!colon) {
            add_word(l, argv[i]);
            continue;
        }
        if (l->joined || asprintf(&l->joined, "%s=:", argv[i]) < 0)
            return inf_fail(e, INF_USAGE, "several arguments ':' cannot be passed on to the ranks");
        add_word(l, l->joined);
        i++;
    }
    return INF_OK;
}

static InfCode make_words(InfError *e, Launcher *l, const char *mpi, char **argv) {
    static const char *const open_mpi[] = {
        "--oversubscribe", "--bind-to", "none", "--enable-recovery", "-x", "INFINIC_JOB", "-x",
        "GOMP_SPINCOUNT",  NULL};
    static const char *const mpich[] = {"-disable-auto-cleanup", NULL};
    static const char *const none[] = {NULL};
    bool open = strcmp(mpi, "Open MPI") == 0;
    int given = 0;
    while (argv[given]) given++;
    l->words = calloc((size_t)given + WORDS_MAX, sizeof *l->words);
    if (!l->words) return inf_fail(e, INF_IO, "out of memory");
    ssize_t length = readlink("/proc/self/exe", l->self, sizeof l->self - 1);
    if (length <= 0) return inf_fail_errno(e, "readlink", "/proc/self/exe");
    TRY(find_mpirun(e, mpi, l->ranks, l->path));
    snprintf(l->number, sizeof l->number, "%d", l->ranks);
    add_word(l, l->path);
    for (const char *const *flag = open                        ? open_mpi
                                   : strcmp(mpi, "MPICH") == 0 ? mpich
                                                               : none;
         *flag; flag++)
        add_word(l, *flag);
    if (open && getuid() == 0) add_word(l, "--allow-run-as-root");
    add_word(l, "-n");
    add_word(l, l->number);
    add_word(l, l->self);
    return add_arguments(e, l, argv);
}

/* In the child: nothing but calls that are safe after fork. A batch system sends SIGTERM to all
 * processes of a job, and an mpirun that got it would kill ranks that are saving; Open MPI's is
 * ended by SIGHUP as well, so SIGTERM is kept from it (its ranks unblock it). */
static _Noreturn void become_mpirun(const Launcher *l, int out, int err, int told, pid_t parent) {
    sigset_t blocked;
    int nothing = open("/dev/null", O_RDONLY);
    sigemptyset(&blocked);
    if (l->ender != SIGTERM) sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    setpgid(0, 0); /* the terminal's signals are for the launcher, which passes them on */
    prctl(PR_SET_PDEATHSIG, l->ender);
    if (getppid() == parent && dup2(nothing, 0) >= 0 && dup2(out, 1) >= 0 && dup2(err, 2) >= 0)
        execv(l->words[0], l->words);
    int why = errno;
    if (write(told, &why, sizeof why) < 0) _exit(126);
    _exit(127);
}

static InfCode start(InfError *e, Launcher *l) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGTSTP, SIGCHLD};
    int out[2], err[2], told[2], why = 0;
    pid_t parent = getpid();
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaddset(&set, numbers[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    l->alarm = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (l->alarm < 0 || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || pipe2(told, O_CLOEXEC))
        return inf_fail_errno(e, "pipe2", "starting the ranks");
    l->mpirun = fork();
    if (l->mpirun < 0) return inf_fail_errno(e, "fork", l->words[0]);
    if (l->mpirun == 0) become_mpirun(l, out[1], err[1], told[1], parent);
    close(out[1]), close(err[1]), close(told[1]);
    l->out = out[0];
    l->err.fd = err[0];
    fcntl(l->out, F_SETFL, O_NONBLOCK);
    fcntl(l->err.fd, F_SETFL, O_NONBLOCK);
    bool failed = read(told[0], &why, sizeof why) == (ssize_t)sizeof why;
    close(told[0]);
    errno = why;
    return failed ? inf_fail_errno(e, "execv", l->words[0]) : INF_OK;
}

/* --- the end --- */

static int finish(Launcher *l) {
    bool failed = !WIFEXITED(l->status) || WEXITSTATUS(l->status) != 0;
    InfError e = {.code = l->code, .rank = l->rank, .text = l->text};
    int code = l->caused ? (int)l->code : l->end_code;
    if (l->interrupts > 1) return INF_STOPPED;
    bool known = l->caused || l->ended;
    inf_relay_end(&l->err, !known || (l->caused && l->early));
    e.rank_count = l->rank == INF_NO_RANK ? 1 : 2;
    if (l->caused && l->text && *l->text) inf_error_print(&e, l->program);
    if (!known && l->asked) {
        fprintf(stderr, "%s: stopped by %s before the ranks had started\n", l->program,
                inf_signal_name(l->asked));
        return INF_STOPPED;
    }
    if (!known && WIFSIGNALED(l->status))
        fprintf(stderr, "%s: error: mpirun was ended by signal %d\n", l->program,
                WTERMSIG(l->status));
    else if (!known)
        fprintf(stderr, "%s: error: %s\n", l->program,
                failed ? "mpirun did not start the ranks; its own words are above"
                       : "the ranks ended without saying why");
    if (!known) return failed && WIFEXITED(l->status) ? INF_IO : INF_PEER;
    if (code != INF_OK || l->out_errno == 0) return code;
    fprintf(stderr, "%s: error: standard output could not be written: %s\n", l->program,
            strerror(l->out_errno));
    return INF_IO;
}

static InfCode launch(InfError *e, Launcher *l, const char *mpi, char **argv, int *exit_code) {
    l->pid = calloc((size_t)l->ranks, sizeof *l->pid);
    if (!l->pid) return inf_fail(e, INF_IO, "out of memory");
    TRY(open_inbox(e, l));
    set_environment();
    TRY(make_words(e, l, mpi, argv));
    TRY(start(e, l));
    run(l);
    if (WIFSIGNALED(l->status)) inf_sweep_mpirun(l->mpirun, l->job);
    *exit_code = finish(l);
    return INF_OK;
}

InfCode inf_launch(InfError *e, const char *program, const char *mpi, int ranks, char **argv,
                   int *exit_code) {
    Launcher l = {.program = program,
                  .ranks = ranks,
                  .rank = INF_NO_RANK,
                  .ender = strcmp(mpi, "Open MPI") == 0 ? SIGHUP : SIGTERM,
                  .err = {.tell = read_line, .of = &l}};
    InfCode code = launch(e, &l, mpi, argv, exit_code);
    free(l.words);
    free(l.joined);
    free(l.text);
    free(l.pid);
    return code;
}
