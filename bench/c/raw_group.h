/* Members of classic groups over blocking sockets: joining, leaving, and the requests that they send meanwhile. */
#ifndef RAW_GROUP_H
#define RAW_GROUP_H

#include "raw_broker.h"

#define HEARTBEAT_VERSION 4
#define OFFSET_COMMIT_VERSION 8

struct raw_member {
    /* Shared by all members of a group. */
    char *group;
    char *id;
    int32_t generation;
};

/* Creates this many groups with this many members each, all stable when this returns; members of one group are
 * neighbours. Each gets one partition. Sessions outlast any measurement. */
struct raw_member *groups_join(const struct broker *broker, int32_t groups, int32_t members, int32_t partitions);

/* All members of a group leave by one request; frees them. */
void groups_leave(const struct broker *broker, struct raw_member *all, int32_t groups, int32_t members);

/* Whole requests after their first 12 bytes; the second gives where in it the offset is. */
void heartbeat_rest(struct writer *writer, const struct raw_member *member);
size_t offset_commit_rest(struct writer *writer, const struct raw_member *member, const char *topic,
                          int32_t partition);

/* Both read a response without its length and return its error code. They end the process if it is not the expected
 * response. */
int16_t read_heartbeat_response(struct reader *reader, int32_t correlation_id);
int16_t read_offset_commit_response(struct reader *reader, int32_t correlation_id, int32_t partition);

#endif
