/* wire.c - listens and connects, by name or by TCP. */
#include "runtime/wire.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "runtime/launch.h"

enum { BACKLOG = 1024, CONNECT_MS = 1500, FLAGS = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK };

static int give_up(int fd) {
    int why = errno;
    if (fd >= 0) close(fd);
    errno = why;
    return -1;
}

/* --- by name --- */

static bool is_ours(int fd) {
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t length = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.uid == getuid();
}

int inf_wire_listen_name(const char *name) {
    struct sockaddr_un at;
    socklen_t length = inf_abstract_address(name, &at);
    int fd = socket(AF_UNIX, FLAGS, 0);
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&at, length) == 0 && listen(fd, BACKLOG) == 0;
    return ok ? fd : give_up(fd);
}

int inf_wire_connect_name(const char *name) {
    struct sockaddr_un at;
    socklen_t length = inf_abstract_address(name, &at);
    int fd = socket(AF_UNIX, FLAGS, 0);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&at, length) == 0 && is_ours(fd);
    return ok ? fd : give_up(fd);
}

int inf_wire_accept(int listener, bool named) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    return fd < 0 || !named || is_ours(fd) ? fd : give_up(fd);
}

/* --- by TCP --- */

static bool is_usable(const struct ifaddrs *i, bool loopback) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) return false;
    if ((i->ifa_flags & IFF_LOOPBACK) && !loopback) return false;
    if (i->ifa_addr->sa_family == AF_INET) return true;
    if (i->ifa_addr->sa_family != AF_INET6) return false;
    struct sockaddr_in6 six;
    memcpy(&six, i->ifa_addr, sizeof six);
    return !IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr);
}

/* The addresses of this host's interfaces, with the port of the listening socket. */
static void list_addresses(InfWireBook *book, bool loopback, bool six, in_port_t port) {
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *i = all; i && book->count < INF_WIRE_ADDRESSES_MAX;
         i = i->ifa_next) {
        if (!is_usable(i, loopback) || (i->ifa_addr->sa_family == AF_INET6 && !six)) continue;
        union {
            struct sockaddr_storage any;
            struct sockaddr_in four;
            struct sockaddr_in6 six;
        } a = {.any = {0}};
        if (i->ifa_addr->sa_family == AF_INET) {
            memcpy(&a.four, i->ifa_addr, sizeof a.four);
            a.four.sin_port = port;
        } else {
            memcpy(&a.six, i->ifa_addr, sizeof a.six);
            a.six.sin6_port = port;
        }
        book->address[book->count++] = a.any;
    }
    freeifaddrs(all);
}

/* One socket for both families; for IPv4 alone where there is no IPv6. */
static int listen_any(bool *six, in_port_t *port) {
    struct sockaddr_in6 at6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    struct sockaddr_in at4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    int off = 0, fd = socket(AF_INET6, FLAGS, 0);
    *six = fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
           bind(fd, (struct sockaddr *)&at6, sizeof at6) == 0;
    if (!*six) {
        if (fd >= 0) close(fd);
        fd = socket(AF_INET, FLAGS, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&at4, sizeof at4) != 0) return give_up(fd);
    }
    socklen_t length = *six ? sizeof at6 : sizeof at4;
    struct sockaddr *at = *six ? (struct sockaddr *)&at6 : (struct sockaddr *)&at4;
    if (getsockname(fd, at, &length) != 0 || listen(fd, BACKLOG) != 0) return give_up(fd);
    *port = *six ? at6.sin6_port : at4.sin_port;
    return fd;
}

int inf_wire_listen_tcp(bool loopback, InfWireBook *out) {
    bool six = false;
    in_port_t port = 0;
    *out = (InfWireBook){0};
    if (getrandom(out->token, sizeof out->token, 0) != (ssize_t)sizeof out->token) return -1;
    int fd = listen_any(&six, &port);
    if (fd >= 0) list_addresses(out, loopback, six, port);
    return fd;
}

/* Begins to connect; it is done when the socket can be written. */
static int begin_connect(const struct sockaddr_storage *to) {
    socklen_t length =
        to->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int fd = socket(to->ss_family, FLAGS, 0), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bool begun = connect(fd, (const struct sockaddr *)to, length) == 0 || errno == EINPROGRESS;
    return begun ? fd : give_up(fd);
}

static bool is_connected(int fd) {
    int why = 0;
    socklen_t length = sizeof why;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &length) == 0 && why == 0;
}

/* All addresses at once, because those of networks that do not reach here do not answer at all: the
 * first that does is taken. */
int inf_wire_connect_tcp(const InfWireBook *book) {
    struct pollfd p[INF_WIRE_ADDRESSES_MAX];
    int waiting = 0, taken = -1;
    for (int i = 0; i < book->count; i++) {
        p[i] = (struct pollfd){.fd = begin_connect(&book->address[i]), .events = POLLOUT};
        waiting += p[i].fd >= 0;
    }
    while (waiting > 0 && taken < 0 && poll(p, (nfds_t)book->count, CONNECT_MS) > 0)
        for (int i = 0; i < book->count && taken < 0; i++) {
            if (p[i].fd < 0 || !p[i].revents) continue;
            if (is_connected(p[i].fd))
                taken = p[i].fd;
            else
                close(p[i].fd);
            p[i].fd = -1;
            waiting--;
        }
    for (int i = 0; i < book->count; i++)
        if (p[i].fd >= 0) close(p[i].fd);
    return taken;
}
