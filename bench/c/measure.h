/* Clocks, latency samples, the one JSON object on stdout, and the one way to fail. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stddef.h>
#include <stdint.h>

#define NANOSECONDS 1000000000ULL

/* Set by main before anything can fail. */
extern const char *program_name;

uint64_t monotonic_ns(void);
double seconds_between(uint64_t from_ns, uint64_t to_ns);

/* User and system time of this process, all threads. */
double cpu_seconds(void);

/* Says why on stderr and ends the process at once: callbacks of other threads may still run. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Like calloc, but the process ends where there is no memory. */
void *allocate(size_t count, size_t size);

/* Latencies in nanoseconds, all kept: percentiles are exact, not interpolated from buckets. */
struct samples {
    uint64_t *values;
    size_t count;
    size_t capacity;
};

void samples_add(struct samples *samples, uint64_t value_ns);

/* Must come before samples_percentile_ms. */
void samples_sort(struct samples *samples);

/* Nearest rank; 0 where there are no samples. */
double samples_percentile_ms(const struct samples *samples, double percent);

void json_begin(void);
void json_text(const char *name, const char *value);
void json_count(const char *name, uint64_t value);
void json_number(const char *name, double value);
void json_flag(const char *name, int value);
void json_end(void);

/* seconds, messages_s, throughput_mb_s (MB is 10^6 bytes): what every workload reports. */
void json_throughput(uint64_t messages, uint64_t bytes, double seconds);

#endif
