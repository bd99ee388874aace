#include "raw_group.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "measure.h"

#define FIND_COORDINATOR_VERSION 3
#define JOIN_GROUP_VERSION 6
#define SYNC_GROUP_VERSION 4
#define LEAVE_GROUP_VERSION 4
#define SESSION_TIMEOUT_MS 600000
/* Room for the numbers after the topic's name. */
#define GROUP_NAME_BYTES 300

static int coordinator_may_come(int16_t error) {
    return error == ERROR_COORDINATOR_LOAD_IN_PROGRESS || error == ERROR_COORDINATOR_NOT_AVAILABLE ||
           error == ERROR_NOT_COORDINATOR;
}

/* The first request for a coordinator makes the broker create the topic in which it keeps groups. */
static void await_coordinator(int socket, const char *group) {
    struct writer rest = {0};
    write_header_rest(&rest);
    write_compact_string(&rest, group);
    write_int8(&rest, 0); /* of a group */
    write_unsigned_varint(&rest, 0);
    uint64_t deadline = broker_deadline();
    for (int32_t id = 1;; id++) {
        struct reader reader;
        uint8_t *response = broker_exchange(socket, API_FIND_COORDINATOR, FIND_COORDINATOR_VERSION, id, &rest, &reader);
        check_correlation(&reader, id);
        skip_tagged_fields(&reader);
        read_int32(&reader); /* throttle time */
        int16_t error = read_int16(&reader);
        if (reader.failed)
            fail("the response to FindCoordinator cannot be read");
        free(response);
        if (!error)
            break;
        if (!coordinator_may_come(error))
            fail("no coordinator of group %s: error %d", group, error);
        pause_before_retry(deadline, "no coordinator of the group was found");
    }
    free(rest.bytes);
}

static void write_classic_string(struct writer *writer, const char *text) {
    size_t size = strlen(text);
    write_int16(writer, (int16_t)size);
    write_bytes(writer, text, size);
}

static void write_compact_bytes(struct writer *writer, const struct writer *bytes) {
    write_unsigned_varint(writer, bytes->size + 1);
    write_bytes(writer, bytes->bytes, bytes->size);
}

static void write_join(struct writer *rest, const struct raw_member *member, const char *topic) {
    struct writer subscription = {0};
    write_int16(&subscription, 0); /* version */
    write_int32(&subscription, 1); /* one topic */
    write_classic_string(&subscription, topic);
    write_int32(&subscription, -1); /* no user data */
    write_header_rest(rest);
    write_compact_string(rest, member->group);
    write_int32(rest, SESSION_TIMEOUT_MS);
    write_int32(rest, SESSION_TIMEOUT_MS); /* to join again */
    write_compact_string(rest, member->id ? member->id : "");
    write_unsigned_varint(rest, 0); /* not static */
    write_compact_string(rest, "consumer");
    write_unsigned_varint(rest, 2); /* one protocol */
    write_compact_string(rest, "range");
    write_compact_bytes(rest, &subscription);
    write_unsigned_varint(rest, 0);
    write_unsigned_varint(rest, 0);
    free(subscription.bytes);
}

/* Gives the error code; takes over the member's id and generation, and says whether it leads. */
static int16_t read_join(struct reader *reader, struct raw_member *member, int *leads) {
    check_correlation(reader, 1);
    skip_tagged_fields(reader);
    read_int32(reader); /* throttle time */
    int16_t error = read_int16(reader);
    member->generation = read_int32(reader);
    skip_compact_string(reader); /* protocol */
    char *leader = read_compact_string(reader);
    char *id = read_compact_string(reader);
    if (reader->failed)
        fail("the response to JoinGroup cannot be read");
    *leads = strcmp(leader, id) == 0;
    if (!error || error == ERROR_MEMBER_ID_REQUIRED) {
        free(member->id);
        member->id = id;
    } else {
        free(id);
    }
    free(leader);
    return error;
}

/* The first of two requests to join only brings an id. */
static void ask_for_id(int socket, struct raw_member *member, const char *topic) {
    uint64_t deadline = broker_deadline();
    struct writer rest = {0};
    write_join(&rest, member, topic);
    for (;;) {
        struct reader reader;
        int leads;
        uint8_t *response = broker_exchange(socket, API_JOIN_GROUP, JOIN_GROUP_VERSION, 1, &rest, &reader);
        int16_t error = read_join(&reader, member, &leads);
        free(response);
        if (error == ERROR_MEMBER_ID_REQUIRED)
            break;
        if (!coordinator_may_come(error))
            fail("joining without a member id failed with error %d", error);
        pause_before_retry(deadline, "the coordinator was not ready");
    }
    free(rest.bytes);
}

static void write_sync(struct writer *rest, const struct raw_member *member, int leads,
                       const struct raw_member *group, int32_t members, const char *topic, int32_t first,
                       int32_t partitions) {
    write_header_rest(rest);
    write_compact_string(rest, member->group);
    write_int32(rest, member->generation);
    write_compact_string(rest, member->id);
    write_unsigned_varint(rest, 0); /* not static */
    write_unsigned_varint(rest, leads ? (uint64_t)members + 1 : 1);
    for (int32_t i = 0; leads && i < members; i++) {
        struct writer assignment = {0};
        write_int16(&assignment, 0); /* version */
        write_int32(&assignment, 1); /* one topic */
        write_classic_string(&assignment, topic);
        write_int32(&assignment, 1); /* one partition */
        write_int32(&assignment, (first + i) % partitions);
        write_int32(&assignment, -1); /* no user data */
        write_compact_string(rest, group[i].id);
        write_compact_bytes(rest, &assignment);
        write_unsigned_varint(rest, 0);
        free(assignment.bytes);
    }
    write_unsigned_varint(rest, 0);
}

static void read_sync(struct reader *reader, const struct raw_member *member) {
    check_correlation(reader, 2);
    skip_tagged_fields(reader);
    read_int32(reader); /* throttle time */
    int16_t error = read_int16(reader);
    uint64_t assignment = read_unsigned_varint(reader);
    if (reader->failed)
        fail("the response to SyncGroup cannot be read");
    if (error)
        fail("a member of group %s could not be synchronized: error %d", member->group, error);
    if (assignment <= 1)
        fail("a member of group %s was assigned nothing", member->group);
}

/* A join or a sync is answered when all members of the group have asked, and brokers take the requests of a connection
 * one after the other: so each member has its own. */
static void join_all(const int *sockets, struct raw_member *all, int *leads, int32_t count, const char *topic) {
    for (int32_t i = 0; i < count; i++) {
        struct writer rest = {0};
        write_join(&rest, &all[i], topic);
        broker_send(sockets[i], API_JOIN_GROUP, JOIN_GROUP_VERSION, 1, &rest);
        free(rest.bytes);
    }
    for (int32_t i = 0; i < count; i++) {
        struct reader reader;
        uint8_t *response = broker_receive(sockets[i], &reader);
        int16_t error = read_join(&reader, &all[i], &leads[i]);
        if (error)
            fail("a member could not join group %s: error %d", all[i].group, error);
        free(response);
    }
}

static void sync_all(const int *sockets, const struct raw_member *all, const int *leads, int32_t groups,
                     int32_t members, const char *topic, int32_t partitions) {
    for (int32_t i = 0; i < groups * members; i++) {
        int32_t first = i / members * members;
        struct writer rest = {0};
        write_sync(&rest, &all[i], leads[i], &all[first], members, topic, first, partitions);
        broker_send(sockets[i], API_SYNC_GROUP, SYNC_GROUP_VERSION, 2, &rest);
        free(rest.bytes);
    }
    for (int32_t i = 0; i < groups * members; i++) {
        struct reader reader;
        uint8_t *response = broker_receive(sockets[i], &reader);
        read_sync(&reader, &all[i]);
        free(response);
    }
}

struct raw_member *groups_join(const struct broker *broker, int32_t groups, int32_t members, int32_t partitions) {
    int32_t count = groups * members;
    struct raw_member *all = allocate((size_t)count, sizeof *all);
    int *sockets = allocate((size_t)count, sizeof *sockets);
    int *leads = allocate((size_t)count, sizeof *leads);
    for (int32_t i = 0; i < count; i++) {
        if (i % members == 0) {
            all[i].group = allocate(GROUP_NAME_BYTES, 1);
            /* All names are equally long, so that offsets are at the same place in all requests. */
            snprintf(all[i].group, GROUP_NAME_BYTES, "%s-%06" PRId32, broker->topic, i / members);
        } else {
            all[i].group = all[i - 1].group;
        }
        sockets[i] = broker_connect(broker);
        if (i == 0)
            await_coordinator(sockets[i], all[i].group);
        ask_for_id(sockets[i], &all[i], broker->topic);
    }
    join_all(sockets, all, leads, count, broker->topic);
    sync_all(sockets, all, leads, groups, members, broker->topic, partitions);
    for (int32_t i = 0; i < count; i++)
        close(sockets[i]);
    free(sockets);
    free(leads);
    return all;
}

void groups_leave(const struct broker *broker, struct raw_member *all, int32_t groups, int32_t members) {
    int socket = broker_connect(broker);
    for (int32_t group = 0; group < groups; group++) {
        struct raw_member *first = &all[group * members];
        struct writer rest = {0};
        struct reader reader;
        write_header_rest(&rest);
        write_compact_string(&rest, first->group);
        write_unsigned_varint(&rest, (uint64_t)members + 1);
        for (int32_t i = 0; i < members; i++) {
            write_compact_string(&rest, first[i].id);
            write_unsigned_varint(&rest, 0); /* not static */
            write_unsigned_varint(&rest, 0);
            free(first[i].id);
        }
        write_unsigned_varint(&rest, 0);
        uint8_t *response = broker_exchange(socket, API_LEAVE_GROUP, LEAVE_GROUP_VERSION, 1, &rest, &reader);
        check_correlation(&reader, 1);
        skip_tagged_fields(&reader);
        read_int32(&reader); /* throttle time */
        int16_t error = read_int16(&reader);
        if (reader.failed || error)
            fail("the members of group %s could not leave: error %d", first->group, error);
        free(response);
        free(rest.bytes);
        free(first->group);
    }
    free(all);
    close(socket);
}

void heartbeat_rest(struct writer *writer, const struct raw_member *member) {
    write_header_rest(writer);
    write_compact_string(writer, member->group);
    write_int32(writer, member->generation);
    write_compact_string(writer, member->id);
    write_unsigned_varint(writer, 0); /* not static */
    write_unsigned_varint(writer, 0);
}

size_t offset_commit_rest(struct writer *writer, const struct raw_member *member, const char *topic,
                          int32_t partition) {
    write_header_rest(writer);
    write_compact_string(writer, member->group);
    write_int32(writer, member->generation);
    write_compact_string(writer, member->id);
    write_unsigned_varint(writer, 0); /* not static */
    write_unsigned_varint(writer, 2); /* one topic */
    write_compact_string(writer, topic);
    write_unsigned_varint(writer, 2); /* one partition */
    write_int32(writer, partition);
    size_t offset_place = writer->size;
    write_int64(writer, 0);
    write_int32(writer, -1);          /* leader epoch unknown */
    write_unsigned_varint(writer, 1); /* no metadata */
    for (int i = 0; i < 3; i++)
        write_unsigned_varint(writer, 0);
    return offset_place;
}

int16_t read_heartbeat_response(struct reader *reader, int32_t correlation_id) {
    check_correlation(reader, correlation_id);
    skip_tagged_fields(reader);
    read_int32(reader); /* throttle time */
    int16_t error = read_int16(reader);
    if (reader->failed)
        fail("the response to Heartbeat cannot be read");
    return error;
}

int16_t read_offset_commit_response(struct reader *reader, int32_t correlation_id, int32_t partition) {
    check_correlation(reader, correlation_id);
    skip_tagged_fields(reader);
    read_int32(reader); /* throttle time */
    uint64_t topics = read_unsigned_varint(reader);
    skip_compact_string(reader);
    uint64_t partitions = read_unsigned_varint(reader);
    int32_t index = read_int32(reader);
    int16_t error = read_int16(reader);
    if (reader->failed || topics != 2 || partitions != 2 || index != partition)
        fail("the response to OffsetCommit for partition %" PRId32 " cannot be read", partition);
    return error;
}
