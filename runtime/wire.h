/* wire.h - the sockets under the lifelines: by name on one host, by TCP between hosts. */
#ifndef INF_RUNTIME_WIRE_H
#define INF_RUNTIME_WIRE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { INF_WIRE_ADDRESSES_MAX = 16, INF_WIRE_TOKEN_BYTES = 16 };

/* Where rank 0 can be reached. Travels as it is. */
typedef struct InfWireBook {
    int32_t count;
    unsigned char token[INF_WIRE_TOKEN_BYTES]; /* random: who knows it belongs to this run */
    struct sockaddr_storage address[INF_WIRE_ADDRESSES_MAX];
} InfWireBook;

/* A socket to accept from, not blocking; -1 with errno.
 *   loopback   the others are on this host */
int inf_wire_listen_name(const char *name);
int inf_wire_listen_tcp(bool loopback, InfWireBook *out);

/* -1 when nobody of this user is there (yet). */
int inf_wire_connect_name(const char *name);
int inf_wire_connect_tcp(const InfWireBook *book);

/* The next one who connects, or -1. Named sockets: of this user only. */
int inf_wire_accept(int listener, bool named);

#endif
