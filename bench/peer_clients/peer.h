/* What the clients of Redis, NATS and RabbitMQ share: the command line, the payload, the clock and the one JSON
 * object that each prints. Knows nothing of any protocol. */
#ifndef PEER_H
#define PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run {
    bool produce; /* otherwise: consume */
    const char *host;
    int port;
    const char *name; /* of the stream or queue */
    const char *kind; /* RabbitMQ: quorum or stream */
    uint64_t count;
    size_t size;
    double seconds_max;
};

/* Read "produce|consume --host H --port P --name N --count C --size B [--kind K] [--seconds MAX]"; exits on error. */
struct run peer_parse(int argc, char **argv);

/* Incompressible bytes, the same in every run. */
char *peer_payload(size_t size);

double peer_now(void);

void peer_fail(const char *what, const char *why) __attribute__((noreturn));

/* Print the result of `messages` of the run's size moved since `started`. */
void peer_report(const struct run *run, uint64_t messages, double started, const char *client);

#endif
