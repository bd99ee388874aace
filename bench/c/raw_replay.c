#include "raw_replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define STALL_MS 30000
#define SCRATCH_BYTES (1u << 20)
/* One system call sends at most this many requests, in three parts each. */
#define REQUESTS_AT_ONCE 32
#define EVENTS_AT_ONCE 256

/* A request in flight. */
struct slot {
    uint8_t start[REQUEST_START_BYTES];
    struct iovec rest;
    /* The copy into which an offset is written, where there is one. */
    uint8_t *own_rest;
    int32_t correlation_id;
    int32_t partition;
    int64_t offset;
    uint64_t sent_ns;
};

struct connection {
    int socket;
    int awaits_room;
    /* Requests of this connection: answered <= written <= issued <= answered + in_flight. */
    uint64_t issued;
    uint64_t written;
    uint64_t answered;
    /* Bytes sent of the request numbered `written`. */
    size_t written_part;
    struct slot *slots;
    /* The response that is arriving: its length and its first bytes. */
    uint8_t head[4 + RESPONSE_HEAD_BYTES];
    size_t head_bytes;
    size_t taken;
};

struct engine {
    struct replay *replay;
    int poll;
    uint64_t issued;
    int stopped;
    uint8_t *scratch;
};

static struct slot *slot_at(const struct engine *engine, struct connection *connection, uint64_t number) {
    return &connection->slots[number % (uint64_t)engine->replay->in_flight];
}

static size_t request_bytes(const struct replay *replay, const struct slot *slot) {
    return REQUEST_START_BYTES + slot->rest.iov_len + replay->tail_bytes;
}

static int64_t next_offset(const struct replay *replay, uint64_t turn) {
    int64_t advance = (int64_t)turn * replay->offset_step;
    if (replay->end_offset > replay->first_offset)
        advance %= replay->end_offset - replay->first_offset;
    return replay->first_offset + advance;
}

static void issue(struct engine *engine, struct connection *connection) {
    struct replay *replay = engine->replay;
    struct slot *slot = slot_at(engine, connection, connection->issued);
    uint64_t number = engine->issued++;
    slot->partition = (int32_t)(number % (uint64_t)replay->partitions);
    slot->correlation_id = (int32_t)(connection->issued & 0x7fffffff);
    const struct writer *rest = &replay->rests[slot->partition];
    slot->rest = (struct iovec){.iov_base = rest->bytes, .iov_len = rest->size};
    if (replay->writes_offset) {
        slot->own_rest = realloc(slot->own_rest, rest->size);
        if (!slot->own_rest)
            fail("no memory for a request");
        memcpy(slot->own_rest, rest->bytes, rest->size);
        slot->offset = next_offset(replay, number / (uint64_t)replay->partitions);
        put_int64(slot->own_rest + replay->offset_place, slot->offset);
        slot->rest.iov_base = slot->own_rest;
    }
    put_request_start(slot->start, request_bytes(replay, slot), replay->api, replay->version, slot->correlation_id);
    connection->issued++;
}

static void fill_window(struct engine *engine, struct connection *connection) {
    struct replay *replay = engine->replay;
    while (!engine->stopped && engine->issued < (uint64_t)replay->requests &&
           connection->issued - connection->answered < (uint64_t)replay->in_flight)
        issue(engine, connection);
}

/* Adds the part of a request from `skip` on. */
static int add_parts(const struct replay *replay, struct slot *slot, size_t skip, struct iovec *parts) {
    struct iovec whole[3] = {
        {.iov_base = slot->start, .iov_len = REQUEST_START_BYTES},
        slot->rest,
        /* sendmsg does not write to it. */
        {.iov_base = (void *)(uintptr_t)replay->tail, .iov_len = replay->tail_bytes},
    };
    int count = 0;
    for (int i = 0; i < 3; i++) {
        if (skip >= whole[i].iov_len) {
            skip -= whole[i].iov_len;
            continue;
        }
        parts[count].iov_base = (uint8_t *)whole[i].iov_base + skip;
        parts[count++].iov_len = whole[i].iov_len - skip;
        skip = 0;
    }
    return count;
}

static void count_written(struct engine *engine, struct connection *connection, size_t sent, uint64_t now_ns) {
    while (sent > 0) {
        struct slot *slot = slot_at(engine, connection, connection->written);
        if (connection->written_part == 0)
            slot->sent_ns = now_ns;
        size_t left = request_bytes(engine->replay, slot) - connection->written_part;
        if (sent < left) {
            connection->written_part += sent;
            return;
        }
        sent -= left;
        connection->written++;
        connection->written_part = 0;
    }
}

static void await_room(struct engine *engine, struct connection *connection, int wanted) {
    if (connection->awaits_room == wanted)
        return;
    connection->awaits_room = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = connection};
    if (epoll_ctl(engine->poll, EPOLL_CTL_MOD, connection->socket, &event))
        fail("epoll: %s", strerror(errno));
}

static void flush(struct engine *engine, struct connection *connection) {
    while (connection->written < connection->issued) {
        struct iovec parts[REQUESTS_AT_ONCE * 3];
        int count = 0;
        for (uint64_t i = 0; i < REQUESTS_AT_ONCE && connection->written + i < connection->issued; i++)
            count += add_parts(engine->replay, slot_at(engine, connection, connection->written + i),
                               i == 0 ? connection->written_part : 0, parts + count);
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        uint64_t now = monotonic_ns();
        ssize_t sent = sendmsg(connection->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            await_room(engine, connection, 1);
            return;
        }
        if (sent < 0)
            fail("cannot send: %s", strerror(errno));
        count_written(engine, connection, (size_t)sent, now);
    }
    await_room(engine, connection, 0);
}

static void take_response(struct engine *engine, struct connection *connection, uint64_t now_ns) {
    struct replay *replay = engine->replay;
    if (connection->answered == connection->written)
        fail("a response came that no request had asked for");
    struct slot *slot = slot_at(engine, connection, connection->answered);
    struct reader reader = {.bytes = connection->head + 4, .left = connection->head_bytes - 4};
    replay->records_bytes += replay->check(replay, &reader, slot->correlation_id, slot->partition, slot->offset);
    samples_add(&replay->latencies, now_ns - slot->sent_ns);
    connection->answered++;
    replay->answered++;
    connection->head_bytes = connection->taken = 0;
}

static size_t response_bytes(const struct connection *connection) {
    struct reader reader = {.bytes = connection->head, .left = 4};
    int32_t size = read_int32(&reader);
    if (size < 4)
        fail("a response of %" PRId32 " bytes", size);
    return 4 + (size_t)size;
}

/* Keeps the first bytes of each response and drops the others. */
static void take_bytes(struct engine *engine, struct connection *connection, const uint8_t *bytes, size_t size,
                       uint64_t now_ns) {
    while (size > 0) {
        size_t end = connection->taken < 4 ? 4 : response_bytes(connection);
        size_t part = end - connection->taken < size ? end - connection->taken : size;
        size_t room = sizeof connection->head - connection->head_bytes;
        size_t kept = part < room ? part : room;
        memcpy(connection->head + connection->head_bytes, bytes, kept);
        connection->head_bytes += kept;
        connection->taken += part;
        bytes += part;
        size -= part;
        if (connection->taken > 4 && connection->taken == response_bytes(connection))
            take_response(engine, connection, now_ns);
    }
}

static void receive(struct engine *engine, struct connection *connection) {
    for (;;) {
        ssize_t received = recv(connection->socket, engine->scratch, SCRATCH_BYTES, MSG_DONTWAIT);
        if (received < 0 && errno == EINTR)
            continue;
        if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (received < 0)
            fail("cannot receive: %s", strerror(errno));
        if (received == 0)
            fail("the broker closed a connection with %" PRIu64 " requests in flight",
                 connection->issued - connection->answered);
        take_bytes(engine, connection, engine->scratch, (size_t)received, monotonic_ns());
        /* There may be more; then epoll says so again, after the others had their turn. */
        if ((size_t)received < SCRATCH_BYTES)
            return;
    }
}

static void run_events(struct engine *engine) {
    struct replay *replay = engine->replay;
    struct epoll_event events[EVENTS_AT_ONCE];
    uint64_t limit_ns = (uint64_t)(replay->max_seconds * (double)NANOSECONDS);
    while (replay->answered < engine->issued) {
        int count = epoll_wait(engine->poll, events, EVENTS_AT_ONCE, STALL_MS);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            fail("epoll: %s", strerror(errno));
        if (count == 0)
            fail("no response for %d s, after %" PRIu64 " of %" PRId64 " requests", STALL_MS / 1000,
                 replay->answered, replay->requests);
        if (limit_ns && monotonic_ns() - replay->started_ns > limit_ns)
            engine->stopped = 1;
        for (int i = 0; i < count; i++) {
            struct connection *connection = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                receive(engine, connection);
            fill_window(engine, connection);
            flush(engine, connection);
        }
    }
}

void replay_run(struct replay *replay, const int *sockets, int64_t socket_count) {
    struct engine engine = {.replay = replay, .scratch = allocate(SCRATCH_BYTES, 1)};
    struct connection *connections = allocate((size_t)socket_count, sizeof *connections);
    engine.poll = epoll_create1(EPOLL_CLOEXEC);
    if (engine.poll < 0)
        fail("epoll: %s", strerror(errno));
    for (int64_t i = 0; i < socket_count; i++) {
        connections[i].socket = sockets[i];
        connections[i].slots = allocate((size_t)replay->in_flight, sizeof *connections[i].slots);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        if (epoll_ctl(engine.poll, EPOLL_CTL_ADD, sockets[i], &event))
            fail("epoll: %s", strerror(errno));
    }
    replay->started_ns = monotonic_ns();
    for (int64_t i = 0; i < socket_count; i++) {
        fill_window(&engine, &connections[i]);
        flush(&engine, &connections[i]);
    }
    run_events(&engine);
    replay->ended_ns = monotonic_ns();
    for (int64_t i = 0; i < socket_count; i++) {
        for (int64_t j = 0; j < replay->in_flight; j++)
            free(connections[i].slots[j].own_rest);
        free(connections[i].slots);
    }
    free(connections);
    close(engine.poll);
    free(engine.scratch);
}
