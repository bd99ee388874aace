#include "measure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

const char *program_name = "bench";

uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NANOSECONDS + (uint64_t)now.tv_nsec;
}

double seconds_between(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? (double)(to_ns - from_ns) / (double)NANOSECONDS : 0.0;
}

double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

_Noreturn void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", program_name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _exit(1);
}

void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        fail("no memory for %zu times %zu bytes", count, size);
    return memory;
}

void samples_add(struct samples *samples, uint64_t value_ns) {
    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity ? samples->capacity * 2 : 65536;
        samples->values = realloc(samples->values, samples->capacity * sizeof *samples->values);
        if (!samples->values)
            fail("no memory for %zu samples", samples->capacity);
    }
    samples->values[samples->count++] = value_ns;
}

static int compare_values(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

void samples_sort(struct samples *samples) {
    if (samples->count)
        qsort(samples->values, samples->count, sizeof *samples->values, compare_values);
}

double samples_percentile_ms(const struct samples *samples, double percent) {
    if (!samples->count)
        return 0.0;
    double exact = percent / 100.0 * (double)samples->count;
    size_t rank = (size_t)exact;
    if ((double)rank < exact)
        rank++;
    if (rank < 1)
        rank = 1;
    if (rank > samples->count)
        rank = samples->count;
    return (double)samples->values[rank - 1] / 1e6;
}

static int fields_written;

static void json_name(const char *name) {
    printf("%s\"%s\": ", fields_written++ ? ", " : "", name);
}

void json_begin(void) {
    fields_written = 0;
    putchar('{');
}

void json_text(const char *name, const char *value) {
    json_name(name);
    putchar('"');
    for (; *value; value++) {
        unsigned char letter = (unsigned char)*value;
        if (letter == '"' || letter == '\\')
            printf("\\%c", letter);
        else if (letter < 0x20)
            printf("\\u%04x", letter);
        else
            putchar(letter);
    }
    putchar('"');
}

void json_count(const char *name, uint64_t value) {
    json_name(name);
    printf("%llu", (unsigned long long)value);
}

void json_number(const char *name, double value) {
    json_name(name);
    printf("%.6f", value);
}

void json_flag(const char *name, int value) {
    json_name(name);
    fputs(value ? "true" : "false", stdout);
}

void json_end(void) {
    puts("}");
    if (fflush(stdout) || ferror(stdout))
        fail("cannot write the result to stdout");
}

void json_throughput(uint64_t messages, uint64_t bytes, double seconds) {
    double divisor = seconds > 0.0 ? seconds : 1e-9;
    json_count("messages", messages);
    json_count("bytes", bytes);
    json_number("seconds", seconds);
    json_number("throughput_mb_s", (double)bytes / 1e6 / divisor);
    json_number("messages_s", (double)messages / divisor);
}
