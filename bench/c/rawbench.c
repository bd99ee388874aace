/* Replays prepared requests over raw sockets, so that the client costs next to nothing and the broker's own ceiling
 * shows. Prints one JSON object on stdout; says on stderr why it failed, with code 1, or what is wrong with its
 * options, with code 2. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "measure.h"
#include "options.h"
#include "raw_broker.h"
#include "raw_group.h"
#include "raw_replay.h"

static const char usage[] =
    "usage: rawbench produce|fetch|heartbeat|commit --port N --topic NAME [options]\n"
    "  all      [--host NAME] [--partitions N] [--connections N] [--idle-connections N] [--in-flight N]\n"
    "           --requests N [--seconds MAX] [--hold]\n"
    "  produce  --batch-bytes N [--records-per-batch N] [--acks 1|all]\n"
    "  fetch    [--max-bytes N] [--offset N] [--offset-step N] [--offset-end N] [--max-wait-ms N]\n"
    "  heartbeat, commit  [--groups N] [--members N, of each group]\n"
    "Each request is for one partition, and partitions take turns. fetch asks for the same offset of each partition\n"
    "every time; with --offset-step it advances by that much at each turn, up to --offset-end, and then starts over.\n"
    "heartbeat and commit let the members of all groups take turns, each in its own partition. --hold prints \"ready\"\n"
    "before the first request, begins when stdin has a line, and exits when stdin ends: only the time in between is\n"
    "measured.\n";

struct raw_settings {
    struct broker broker;
    const char *acks;
    int64_t partitions;
    int64_t connections;
    int64_t idle_connections;
    int64_t groups;
    int64_t members;
    int64_t in_flight;
    int64_t requests;
    int64_t batch_bytes;
    int64_t records_per_batch;
    int64_t max_bytes;
    int64_t max_wait_ms;
    int64_t offset;
    int64_t offset_step;
    int64_t offset_end;
    double max_seconds;
    int hold;
};

static void allow_many_sockets(int64_t wanted) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if ((uint64_t)wanted + 16 > limit.rlim_cur)
        fail("%" PRId64 " connections need more open files than the limit of %" PRIu64, wanted,
             (uint64_t)limit.rlim_cur);
}

static int *connect_many(const struct broker *broker, int64_t count) {
    int *sockets = allocate((size_t)count, sizeof *sockets);
    for (int64_t i = 0; i < count; i++)
        sockets[i] = broker_connect(broker);
    return sockets;
}

/* A connection that was closed meanwhile was not idle. */
static void close_idle(int *sockets, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint8_t byte;
        ssize_t received = recv(sockets[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (received >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
            fail("idle connection %" PRId64 " did not stay open and silent", i);
        close(sockets[i]);
    }
    free(sockets);
}

static uint64_t check_produce(const struct replay *replay, struct reader *reader, int32_t correlation_id,
                              int32_t partition, int64_t offset) {
    (void)offset;
    int16_t error = read_produce_response(reader, correlation_id, partition);
    if (error)
        fail("Produce to partition %" PRId32 ": error %d", partition, error);
    return replay->tail_bytes - PRODUCE_TAIL_BYTES;
}

static uint64_t check_fetch(const struct replay *replay, struct reader *reader, int32_t correlation_id,
                            int32_t partition, int64_t offset) {
    (void)replay;
    uint64_t records_bytes = 0;
    int16_t error = read_fetch_response(reader, correlation_id, partition, &records_bytes);
    if (error)
        fail("Fetch of offset %" PRId64 " of partition %" PRId32 ": error %d", offset, partition, error);
    if (records_bytes == 0)
        fail("partition %" PRId32 " has no records at offset %" PRId64, partition, offset);
    int64_t base_offset = read_int64(reader);
    read_bytes(reader, 8); /* length, leader epoch */
    const uint8_t *magic = read_bytes(reader, 1);
    if (!magic || *magic != 2 || base_offset > offset)
        fail("Fetch of offset %" PRId64 " of partition %" PRId32 " gave a batch at %" PRId64, offset, partition,
             base_offset);
    return records_bytes;
}

static uint64_t check_heartbeat(const struct replay *replay, struct reader *reader, int32_t correlation_id,
                                int32_t member, int64_t offset) {
    (void)replay;
    (void)offset;
    int16_t error = read_heartbeat_response(reader, correlation_id);
    if (error)
        fail("Heartbeat of member %" PRId32 ": error %d", member, error);
    return 0;
}

static uint64_t check_commit(const struct replay *replay, struct reader *reader, int32_t correlation_id,
                             int32_t member, int64_t offset) {
    int16_t error = read_offset_commit_response(reader, correlation_id, member % replay->topic_partitions);
    if (error)
        fail("OffsetCommit of member %" PRId32 " at %" PRId64 ": error %d", member, offset, error);
    return 0;
}

static void await_line(void) {
    char line[16];
    puts("ready");
    if (fflush(stdout) || !fgets(line, sizeof line, stdin))
        fail("stdin ended before the line that starts the measurement");
}

static void await_end_of_input(void) {
    while (getchar() != EOF)
        ;
}

static void measure_and_report(struct replay *replay, const struct raw_settings *settings) {
    const struct broker *broker = &settings->broker;
    int *idle = connect_many(broker, settings->idle_connections);
    int *sockets = connect_many(broker, settings->connections);
    if (settings->hold)
        await_line();
    double cpu_before = cpu_seconds();
    replay_run(replay, sockets, settings->connections);
    double cpu_used = cpu_seconds() - cpu_before;
    close_idle(idle, settings->idle_connections);
    for (int64_t i = 0; i < settings->connections; i++)
        close(sockets[i]);
    free(sockets);
    double seconds = seconds_between(replay->started_ns, replay->ended_ns);
    double divisor = seconds > 0.0 ? seconds : 1e-9;
    samples_sort(&replay->latencies);
    json_begin();
    json_count("requests", replay->answered);
    json_count("bytes", replay->records_bytes);
    json_number("seconds", seconds);
    json_number("requests_s", (double)replay->answered / divisor);
    json_number("throughput_mb_s", (double)replay->records_bytes / 1e6 / divisor);
    json_number("p50_ms", samples_percentile_ms(&replay->latencies, 50));
    json_number("p99_ms", samples_percentile_ms(&replay->latencies, 99));
    json_number("client_cpu_s", cpu_used);
}

static void run_produce(const struct raw_settings *settings, struct replay *replay, int admin) {
    size_t batch_bytes;
    uint8_t *batch =
        record_batch_new((size_t)settings->batch_bytes, (int32_t)settings->records_per_batch, &batch_bytes);
    if (!batch)
        usage_error("%" PRId64 " records do not fit in a batch of %" PRId64 " bytes", settings->records_per_batch,
                    settings->batch_bytes);
    int16_t acks = strcmp(settings->acks, "all") == 0 ? -1 : 1;
    broker_prepare_topic(&settings->broker, admin, replay->partitions);
    broker_prime_partitions(&settings->broker, admin, replay->partitions, acks);
    close(admin);
    struct writer tail = {0};
    static const uint8_t empty_tags[PRODUCE_TAIL_BYTES] = {0};
    write_bytes(&tail, batch, batch_bytes);
    write_bytes(&tail, empty_tags, sizeof empty_tags);
    free(batch);
    for (int32_t i = 0; i < replay->partitions; i++)
        produce_partition_part(&replay->rests[i], settings->broker.topic, i, acks, batch_bytes);
    replay->api = API_PRODUCE;
    replay->version = PRODUCE_VERSION;
    replay->tail = tail.bytes;
    replay->tail_bytes = tail.size;
    replay->check = check_produce;
    measure_and_report(replay, settings);
    json_count("batch_bytes", batch_bytes);
    json_count("records", replay->answered * (uint64_t)settings->records_per_batch);
    json_flag("complete", replay->answered == (uint64_t)replay->requests);
    json_end();
    free(tail.bytes);
}

static void run_fetch(const struct raw_settings *settings, struct replay *replay, int admin) {
    close(admin);
    for (int32_t i = 0; i < replay->partitions; i++)
        replay->offset_place = fetch_rest(&replay->rests[i], settings->broker.topic, i, (int32_t)settings->max_bytes,
                                          (int32_t)settings->max_wait_ms);
    replay->api = API_FETCH;
    replay->version = FETCH_VERSION;
    replay->writes_offset = 1;
    replay->first_offset = settings->offset;
    replay->offset_step = settings->offset_step;
    replay->end_offset = settings->offset_end;
    replay->check = check_fetch;
    measure_and_report(replay, settings);
    json_flag("complete", replay->answered == (uint64_t)replay->requests);
    json_end();
}

static void run_members(const struct raw_settings *settings, struct replay *replay, int admin, int commits) {
    const struct broker *broker = &settings->broker;
    replay->topic_partitions = (int32_t)settings->partitions;
    broker_prepare_topic(broker, admin, replay->topic_partitions);
    close(admin);
    int32_t groups = (int32_t)settings->groups, members = (int32_t)settings->members;
    struct raw_member *all = groups_join(broker, groups, members, replay->topic_partitions);
    for (int32_t i = 0; i < replay->partitions; i++) {
        if (!commits) {
            heartbeat_rest(&replay->rests[i], &all[i]);
            continue;
        }
        size_t place = offset_commit_rest(&replay->rests[i], &all[i], broker->topic, i % replay->topic_partitions);
        if (i > 0 && place != replay->offset_place)
            fail("the broker gave member ids of different lengths");
        replay->offset_place = place;
    }
    replay->api = commits ? API_OFFSET_COMMIT : API_HEARTBEAT;
    replay->version = commits ? OFFSET_COMMIT_VERSION : HEARTBEAT_VERSION;
    replay->writes_offset = commits;
    replay->first_offset = 1;
    replay->offset_step = 1;
    replay->check = commits ? check_commit : check_heartbeat;
    measure_and_report(replay, settings);
    json_count("groups", (uint64_t)groups);
    json_count("members", (uint64_t)members);
    json_flag("complete", replay->answered == (uint64_t)replay->requests);
    json_end();
    if (settings->hold)
        await_end_of_input();
    groups_leave(broker, all, groups, members);
}

static int run(const char *workload, const struct raw_settings *settings) {
    int produces = strcmp(workload, "produce") == 0;
    int commits = strcmp(workload, "commit") == 0;
    int has_members = commits || strcmp(workload, "heartbeat") == 0;
    if (!produces && !has_members && strcmp(workload, "fetch") != 0) {
        fputs(usage, stderr);
        return 2;
    }
    if (!settings->broker.port || !settings->broker.topic || settings->requests == 0)
        usage_error("--port, --topic and --requests are needed");
    if (strlen(settings->broker.topic) > 249)
        usage_error("a topic's name has at most 249 letters");
    if (produces && settings->batch_bytes == 0)
        usage_error("--batch-bytes is needed");
    /* Without acknowledgements there is no response to time or check. */
    if (strcmp(settings->acks, "1") != 0 && strcmp(settings->acks, "all") != 0)
        usage_error("--acks takes 1 or all, not '%s'", settings->acks);
    int64_t all_members = settings->groups * settings->members;
    if (has_members && all_members > 100000)
        usage_error("--groups and --members make more than 100000 members");
    int64_t joining = has_members ? all_members : 0;
    int64_t measuring = settings->connections + settings->idle_connections;
    allow_many_sockets(joining > measuring ? joining : measuring);
    int32_t kinds = (int32_t)(has_members ? all_members : settings->partitions);
    struct replay replay = {.partitions = kinds, .requests = settings->requests,
                            .in_flight = settings->in_flight, .max_seconds = settings->max_seconds};
    replay.rests = allocate((size_t)kinds, sizeof *replay.rests);
    int admin = broker_connect(&settings->broker);
    if (produces)
        run_produce(settings, &replay, admin);
    else if (has_members)
        run_members(settings, &replay, admin, commits);
    else
        run_fetch(settings, &replay, admin);
    for (int32_t i = 0; i < kinds; i++)
        free(replay.rests[i].bytes);
    free(replay.rests);
    free(replay.latencies.values);
    return 0;
}

int main(int argument_count, char **arguments) {
    program_name = "rawbench";
    struct raw_settings settings = {.broker = {.host = "127.0.0.1"}, .acks = "1", .partitions = 1, .connections = 1,
                                    .in_flight = 1, .records_per_batch = 1, .groups = 1, .members = 1, .max_bytes = 1 << 20,
                                    .max_wait_ms = 500};
    const struct option_row rows[] = {
        {"host", OPTION_TEXT, &settings.broker.host, 0, 0, NULL},
        {"port", OPTION_TEXT, &settings.broker.port, 0, 0, NULL},
        {"topic", OPTION_TEXT, &settings.broker.topic, 0, 0, NULL},
        {"acks", OPTION_TEXT, &settings.acks, 0, 0, NULL},
        {"partitions", OPTION_COUNT, &settings.partitions, 1, 100000, NULL},
        {"connections", OPTION_COUNT, &settings.connections, 1, 100000, NULL},
        {"idle-connections", OPTION_COUNT, &settings.idle_connections, 0, 100000, NULL},
        {"groups", OPTION_COUNT, &settings.groups, 1, 100000, NULL},
        {"members", OPTION_COUNT, &settings.members, 1, 100000, NULL},
        {"in-flight", OPTION_COUNT, &settings.in_flight, 1, 100000, NULL},
        {"requests", OPTION_COUNT, &settings.requests, 1, 1000000000, NULL},
        {"batch-bytes", OPTION_COUNT, &settings.batch_bytes, 1, 100000000, NULL},
        {"records-per-batch", OPTION_COUNT, &settings.records_per_batch, 1, 10000000, NULL},
        {"max-bytes", OPTION_COUNT, &settings.max_bytes, 1, 1000000000, NULL},
        {"max-wait-ms", OPTION_COUNT, &settings.max_wait_ms, 0, 600000, NULL},
        {"offset", OPTION_COUNT, &settings.offset, 0, INT64_MAX, NULL},
        {"offset-step", OPTION_COUNT, &settings.offset_step, 0, INT32_MAX, NULL},
        {"offset-end", OPTION_COUNT, &settings.offset_end, 0, INT64_MAX, NULL},
        {"seconds", OPTION_SECONDS, &settings.max_seconds, 0, 0, NULL},
        {"hold", OPTION_FLAG, &settings.hold, 0, 0, NULL},
    };
    if (argument_count < 2) {
        fputs(usage, stderr);
        return 2;
    }
    options_read(rows, sizeof rows / sizeof *rows, argument_count - 2, arguments + 2);
    return run(arguments[1], &settings);
}
