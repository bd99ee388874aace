/* One broker over blocking sockets: connecting, preparing the topic, and the prepared requests themselves. */
#ifndef RAW_BROKER_H
#define RAW_BROKER_H

#include "raw_wire.h"

struct broker {
    const char *host;
    const char *port;
    const char *topic;
};

#define PRODUCE_VERSION 9
#define FETCH_VERSION 12

/* Connected, without delay, and answered once by ApiVersions. */
int broker_connect(const struct broker *broker);

/* Sends one request; `rest` is what follows the first 12 bytes. */
void broker_send(int socket, int16_t api, int16_t version, int32_t correlation_id, const struct writer *rest);

/* A whole response, which the caller frees, and a reader at its beginning. */
uint8_t *broker_receive(int socket, struct reader *reader);

/* One after the other. */
uint8_t *broker_exchange(int socket, int16_t api, int16_t version, int32_t correlation_id,
                         const struct writer *rest, struct reader *reader);

/* Ends the process where the next thing to read is not this. */
void check_correlation(struct reader *reader, int32_t correlation_id);

/* For what a broker does soon, but not at once: the deadline, and a pause that ends the process after it. */
uint64_t broker_deadline(void);
void pause_before_retry(uint64_t deadline_ns, const char *what);

/* Creates the topic unless it exists and waits until this broker leads every partition. */
void broker_prepare_topic(const struct broker *broker, int socket, int32_t partitions);

/* Sends one small record to each partition; retries where the broker is not the leader yet. */
void broker_prime_partitions(const struct broker *broker, int socket, int32_t partitions, int16_t acks);

/* Up to the record batch; the batch and three empty sets of tagged fields follow. */
void produce_partition_part(struct writer *writer, const char *topic, int32_t partition, int16_t acks,
                            size_t batch_bytes);

/* What ends every Produce request. */
#define PRODUCE_TAIL_BYTES 3

/* A whole request after its first 12 bytes; gives where in it the offset is. */
size_t fetch_rest(struct writer *writer, const char *topic, int32_t partition, int32_t max_bytes,
                  int32_t max_wait_ms);

/* Both read a response without its length, and end the process if it is not the expected one. */
int16_t read_produce_response(struct reader *reader, int32_t correlation_id, int32_t partition);

/* Gives the error code and the bytes of records, which begin where the reader then is. */
int16_t read_fetch_response(struct reader *reader, int32_t correlation_id, int32_t partition,
                            uint64_t *records_bytes);

#endif
