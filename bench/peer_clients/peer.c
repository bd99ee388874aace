#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

void peer_fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why ? why : "no reason given");
    exit(1);
}

double peer_now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static uint64_t number(const char *option, const char *text)
{
    char *end = NULL;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *end || value == 0)
        peer_fail(option, "a positive whole number is needed");
    return value;
}

struct run peer_parse(int argc, char **argv)
{
    struct run run = {.host = "127.0.0.1", .kind = "quorum", .seconds_max = 60};
    if (argc < 2 || (strcmp(argv[1], "produce") && strcmp(argv[1], "consume")))
        peer_fail(argv[0], "produce or consume comes first");
    run.produce = !strcmp(argv[1], "produce");
    for (int i = 2; i < argc; i += 2) {
        const char *option = argv[i];
        if (i + 1 == argc)
            peer_fail(option, "a value is missing");
        const char *value = argv[i + 1];
        if (!strcmp(option, "--host"))
            run.host = value;
        else if (!strcmp(option, "--port"))
            run.port = (int)number(option, value);
        else if (!strcmp(option, "--name"))
            run.name = value;
        else if (!strcmp(option, "--kind"))
            run.kind = value;
        else if (!strcmp(option, "--count"))
            run.count = number(option, value);
        else if (!strcmp(option, "--size"))
            run.size = number(option, value);
        else if (!strcmp(option, "--seconds"))
            run.seconds_max = (double)number(option, value);
        else
            peer_fail(option, "no such option");
    }
    if (!run.name || !run.port || !run.count || !run.size)
        peer_fail(argv[0], "--port, --name, --count and --size are needed");
    return run;
}

char *peer_payload(size_t size)
{
    char *payload = malloc(size);
    if (!payload)
        peer_fail("payload", "no memory");
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        payload[i] = (char)(state >> 32);
    }
    return payload;
}

void peer_report(const struct run *run, uint64_t messages, double started, const char *client)
{
    double seconds = peer_now() - started;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    double bytes = (double)messages * (double)run->size;
    printf("{\"messages\": %llu, \"bytes\": %.0f, \"seconds\": %.6f, \"throughput_mb_s\": %.3f, "
           "\"messages_s\": %.1f, \"client_cpu_s\": %.3f, \"client\": \"%s\"}\n",
           (unsigned long long)messages, bytes, seconds, bytes / 1e6 / seconds, (double)messages / seconds, cpu,
           client);
}
