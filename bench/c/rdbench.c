/* One client over librdkafka for every system that speaks Kafka's protocol, so that the broker is what differs.
 * Prints one JSON object on stdout; says on stderr why it failed, with code 1, or what is wrong with its options,
 * with code 2. */
#include <stdio.h>
#include <string.h>

#include "measure.h"
#include "options.h"
#include "rd_client.h"

static const char usage[] =
    "usage: rdbench produce|consume|latency|tail|group --bootstrap HOST:PORT --topic NAME [options]\n"
    "  produce  --partitions N --count N --size BYTES [--batch-bytes default|N] [--linger-ms N]\n"
    "           [--acks 0|1|all] [--codec none|lz4] [--in-flight N] [--one-message] [--seconds MAX]\n"
    "  consume  --partitions N --count N [--size BYTES] [--from-beginning] [--fetch-max-bytes N] [--seconds MAX]\n"
    "  latency  --rate N --seconds S --size BYTES [--partitions N] [--warmup-seconds W] [--acks 1|all]\n"
    "  tail     --partitions N --count N --size BYTES --consumers N [produce's other options but --one-message]\n"
    "  group    --event kill|join|restart --protocol eager|cooperative|consumer --members N --partitions N\n"
    "           [--rate N, for each partition] [--session-ms N] [--heartbeat-ms N]\n"
    "  each of them also takes --producer NAME=VALUE,... and --consumer NAME=VALUE,...: properties of librdkafka\n";

static int one_of(const char *value, const char *const *words) {
    for (; *words; words++)
        if (strcmp(value, *words) == 0)
            return 1;
    return 0;
}

static void check_common(const struct settings *settings) {
    static const char *const acks[] = {"0", "1", "all", NULL};
    static const char *const codecs[] = {"none", "lz4", NULL};
    if (!settings->bootstrap || !settings->topic)
        usage_error("--bootstrap and --topic are needed");
    if (!one_of(settings->acks, acks))
        usage_error("--acks takes 0, 1 or all, not '%s'", settings->acks);
    if (!one_of(settings->codec, codecs))
        usage_error("--codec takes none or lz4, not '%s'", settings->codec);
}

static void check_group(struct settings *settings) {
    static const char *const events[] = {"kill", "join", "restart", NULL};
    static const char *const protocols[] = {"eager", "cooperative", "consumer", NULL};
    if (!settings->event || !one_of(settings->event, events))
        usage_error("--event takes kill, join or restart");
    if (!settings->protocol || !one_of(settings->protocol, protocols))
        usage_error("--protocol takes eager, cooperative or consumer");
    /* One must be left, and none may be without a partition, also when one more has joined. */
    if (settings->members < 2 || settings->partitions <= settings->members)
        usage_error("--members of at least 2 and more --partitions than members are needed");
    if (settings->rate == 0)
        settings->rate = 50;
    if (settings->rate > 1000)
        usage_error("--rate takes at most 1000 messages a second for each partition");
}

static int run(const char *workload, struct settings *settings) {
    check_common(settings);
    int sized = settings->size > 0, counted = settings->count > 0;
    if (strcmp(workload, "produce") == 0 || strcmp(workload, "tail") == 0) {
        if (!sized || !counted)
            usage_error("--count and --size are needed");
        if (strcmp(workload, "produce") == 0)
            return run_produce(settings);
        if (settings->one_message || settings->max_seconds > 0.0)
            usage_error("tail takes neither --one-message nor --seconds");
        return run_tail(settings);
    }
    if (strcmp(workload, "consume") == 0) {
        if (!counted)
            usage_error("--count is needed");
        return run_consume(settings);
    }
    if (strcmp(workload, "latency") == 0) {
        if (settings->size < 16 || settings->rate == 0 || settings->max_seconds <= 0.0)
            usage_error("--rate, --seconds and a --size of at least 16 are needed");
        if ((double)settings->rate * settings->max_seconds < 1.0)
            usage_error("no message would be sent at that rate in that time");
        return run_latency(settings);
    }
    if (strcmp(workload, "group") == 0) {
        check_group(settings);
        return run_group(settings);
    }
    fputs(usage, stderr);
    return 2;
}

int main(int argument_count, char **arguments) {
    program_name = "rdbench";
    struct settings settings = {.acks = "1", .codec = "none", .partitions = 1, .linger_ms = -1, .consumers = 5,
                                .warmup_seconds = 1.0, .session_ms = 6000, .heartbeat_ms = 500};
    const struct option_row rows[] = {
        {"bootstrap", OPTION_TEXT, &settings.bootstrap, 0, 0, NULL},
        {"topic", OPTION_TEXT, &settings.topic, 0, 0, NULL},
        {"acks", OPTION_TEXT, &settings.acks, 0, 0, NULL},
        {"codec", OPTION_TEXT, &settings.codec, 0, 0, NULL},
        {"producer", OPTION_TEXT, &settings.producer, 0, 0, NULL},
        {"consumer", OPTION_TEXT, &settings.consumer, 0, 0, NULL},
        {"protocol", OPTION_TEXT, &settings.protocol, 0, 0, NULL},
        {"event", OPTION_TEXT, &settings.event, 0, 0, NULL},
        {"members", OPTION_COUNT, &settings.members, 1, 1000, NULL},
        {"session-ms", OPTION_COUNT, &settings.session_ms, 1, 1800000, NULL},
        {"heartbeat-ms", OPTION_COUNT, &settings.heartbeat_ms, 1, 600000, NULL},
        {"partitions", OPTION_COUNT, &settings.partitions, 1, 100000, NULL},
        {"count", OPTION_COUNT, &settings.count, 1, 10000000000, NULL},
        {"size", OPTION_COUNT, &settings.size, 1, 100000000, NULL},
        {"batch-bytes", OPTION_COUNT, &settings.batch_bytes, 1, 2147483647, "default"},
        {"linger-ms", OPTION_COUNT, &settings.linger_ms, 0, 900000, NULL},
        {"in-flight", OPTION_COUNT, &settings.in_flight, 1, 1000000, NULL},
        {"fetch-max-bytes", OPTION_COUNT, &settings.fetch_max_bytes, 1, 1000000000, NULL},
        {"rate", OPTION_COUNT, &settings.rate, 1, 10000000, NULL},
        {"consumers", OPTION_COUNT, &settings.consumers, 1, 1000, NULL},
        {"seconds", OPTION_SECONDS, &settings.max_seconds, 0, 0, NULL},
        {"warmup-seconds", OPTION_SECONDS, &settings.warmup_seconds, 0, 0, NULL},
        {"one-message", OPTION_FLAG, &settings.one_message, 0, 0, NULL},
        {"from-beginning", OPTION_FLAG, &settings.from_beginning, 0, 0, NULL},
    };
    if (argument_count < 2) {
        fputs(usage, stderr);
        return 2;
    }
    options_read(rows, sizeof rows / sizeof *rows, argument_count - 2, arguments + 2);
    return run(arguments[1], &settings);
}
