#include "raw_broker.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "measure.h"

#define PATIENCE_SECONDS 60
#define REQUEST_TIMEOUT_MS 30000
#define RESPONSE_BYTES_MAX (64u << 20)

static void send_all(int socket, const uint8_t *bytes, size_t size) {
    while (size > 0) {
        ssize_t sent = send(socket, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            fail("cannot send: %s", strerror(errno));
        bytes += sent;
        size -= (size_t)sent;
    }
}

static void receive_all(int socket, uint8_t *bytes, size_t size) {
    while (size > 0) {
        ssize_t received = recv(socket, bytes, size, 0);
        if (received < 0 && errno == EINTR)
            continue;
        if (received == 0)
            fail("the broker closed the connection");
        if (received < 0)
            fail("cannot receive: %s", strerror(errno));
        bytes += received;
        size -= (size_t)received;
    }
}

void broker_send(int socket, int16_t api, int16_t version, int32_t correlation_id, const struct writer *rest) {
    uint8_t start[REQUEST_START_BYTES];
    put_request_start(start, REQUEST_START_BYTES + rest->size, api, version, correlation_id);
    send_all(socket, start, sizeof start);
    send_all(socket, rest->bytes, rest->size);
}

uint8_t *broker_receive(int socket, struct reader *reader) {
    uint8_t length[4];
    receive_all(socket, length, sizeof length);
    struct reader length_reader = {.bytes = length, .left = sizeof length};
    int32_t size = read_int32(&length_reader);
    if (size < 4 || (uint32_t)size > RESPONSE_BYTES_MAX)
        fail("a response of %" PRId32 " bytes", size);
    uint8_t *response = allocate((size_t)size, 1);
    receive_all(socket, response, (size_t)size);
    *reader = (struct reader){.bytes = response, .left = (size_t)size};
    return response;
}

uint8_t *broker_exchange(int socket, int16_t api, int16_t version, int32_t correlation_id,
                         const struct writer *rest, struct reader *reader) {
    broker_send(socket, api, version, correlation_id, rest);
    return broker_receive(socket, reader);
}

void check_correlation(struct reader *reader, int32_t correlation_id) {
    int32_t found = read_int32(reader);
    if (reader->failed || found != correlation_id)
        fail("a response carries correlation id %" PRId32 ", not %" PRId32, found, correlation_id);
}

static int open_socket(const struct broker *broker) {
    struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    int error = getaddrinfo(broker->host, broker->port, &wanted, &found);
    if (error)
        fail("%s port %s: %s", broker->host, broker->port, gai_strerror(error));
    int connected = -1;
    for (struct addrinfo *address = found; address && connected < 0; address = address->ai_next) {
        connected = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
        if (connected < 0)
            fail("no socket: %s", strerror(errno));
        if (connect(connected, address->ai_addr, address->ai_addrlen) < 0) {
            error = errno;
            close(connected);
            connected = -1;
        }
    }
    freeaddrinfo(found);
    if (connected < 0)
        fail("cannot connect to %s port %s: %s", broker->host, broker->port, strerror(error));
    int on = 1;
    setsockopt(connected, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
    setsockopt(connected, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connected, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return connected;
}

int broker_connect(const struct broker *broker) {
    int socket = open_socket(broker);
    struct writer rest = {0};
    struct reader reader;
    write_header_rest(&rest);
    write_compact_string(&rest, "rawbench");
    write_compact_string(&rest, "1");
    write_unsigned_varint(&rest, 0);
    uint8_t *response = broker_exchange(socket, API_API_VERSIONS, 3, 1, &rest, &reader);
    check_correlation(&reader, 1);
    int16_t error = read_int16(&reader);
    if (reader.failed || error)
        fail("ApiVersions: error %d", error);
    free(response);
    free(rest.bytes);
    return socket;
}

static void create_topic(const struct broker *broker, int socket, int32_t partitions) {
    struct writer rest = {0};
    struct reader reader;
    write_header_rest(&rest);
    write_unsigned_varint(&rest, 2); /* one topic */
    write_compact_string(&rest, broker->topic);
    write_int32(&rest, partitions);
    write_int16(&rest, 1);           /* replicas */
    write_unsigned_varint(&rest, 1); /* no assignments */
    write_unsigned_varint(&rest, 1); /* no configuration */
    write_unsigned_varint(&rest, 0);
    write_int32(&rest, REQUEST_TIMEOUT_MS);
    write_int8(&rest, 0); /* not only a check */
    write_unsigned_varint(&rest, 0);
    uint8_t *response = broker_exchange(socket, API_CREATE_TOPICS, 5, 2, &rest, &reader);
    check_correlation(&reader, 2);
    skip_tagged_fields(&reader);
    read_int32(&reader); /* throttle time */
    uint64_t topics = read_unsigned_varint(&reader);
    skip_compact_string(&reader);
    int16_t error = read_int16(&reader);
    if (reader.failed || topics != 2)
        fail("the response to CreateTopics cannot be read");
    if (error && error != ERROR_TOPIC_ALREADY_EXISTS)
        fail("topic %s was not created: error %d", broker->topic, error);
    free(response);
    free(rest.bytes);
}

static void skip_int32_array(struct reader *reader) {
    uint64_t count = read_unsigned_varint(reader);
    if (count > 1)
        read_bytes(reader, (count - 1) * 4);
}

/* Reads brokers and cluster of a Metadata response, version 9; gives how many brokers there are. */
static uint64_t read_metadata_start(struct reader *reader) {
    skip_tagged_fields(reader);
    read_int32(reader); /* throttle time */
    uint64_t brokers = read_unsigned_varint(reader);
    for (uint64_t i = 1; i < brokers && !reader->failed; i++) {
        read_int32(reader);
        skip_compact_string(reader);
        read_int32(reader);
        skip_compact_string(reader);
        skip_tagged_fields(reader);
    }
    skip_compact_string(reader);
    read_int32(reader); /* controller */
    return brokers - 1;
}

/* Nonzero when each of the partitions has a leader. */
static int topic_is_ready(struct reader *reader, int32_t partitions) {
    if (read_metadata_start(reader) > 1)
        fail("this client drives one broker, and the cluster has more");
    uint64_t topics = read_unsigned_varint(reader);
    int16_t error = read_int16(reader);
    skip_compact_string(reader);
    read_bytes(reader, 1); /* is internal */
    uint64_t count = read_unsigned_varint(reader);
    if (reader->failed || topics != 2)
        fail("the response to Metadata cannot be read");
    if (error)
        return 0;
    if (count - 1 != (uint64_t)partitions)
        fail("the topic has %" PRIu64 " partitions, not %" PRId32, count - 1, partitions);
    int ready = 1;
    for (uint64_t i = 1; i < count && !reader->failed; i++) {
        int16_t partition_error = read_int16(reader);
        read_int32(reader); /* index */
        int32_t leader = read_int32(reader);
        read_int32(reader); /* leader epoch */
        for (int list = 0; list < 3; list++)
            skip_int32_array(reader);
        skip_tagged_fields(reader);
        ready = ready && !partition_error && leader >= 0;
    }
    if (reader->failed)
        fail("the response to Metadata cannot be read");
    return ready;
}

uint64_t broker_deadline(void) {
    return monotonic_ns() + PATIENCE_SECONDS * NANOSECONDS;
}

void pause_before_retry(uint64_t deadline_ns, const char *what) {
    if (monotonic_ns() > deadline_ns)
        fail("%s within %d s", what, PATIENCE_SECONDS);
    struct timespec pause = {.tv_nsec = 10000000};
    nanosleep(&pause, NULL);
}

void broker_prepare_topic(const struct broker *broker, int socket, int32_t partitions) {
    create_topic(broker, socket, partitions);
    struct writer rest = {0};
    write_header_rest(&rest);
    write_unsigned_varint(&rest, 2); /* one topic */
    write_compact_string(&rest, broker->topic);
    write_unsigned_varint(&rest, 0);
    write_int8(&rest, 0); /* no auto-creation */
    write_int8(&rest, 0); /* no authorized operations, twice */
    write_int8(&rest, 0);
    write_unsigned_varint(&rest, 0);
    uint64_t deadline = broker_deadline();
    for (int32_t id = 3;; id++) {
        struct reader reader;
        uint8_t *response = broker_exchange(socket, API_METADATA, 9, id, &rest, &reader);
        check_correlation(&reader, id);
        int ready = topic_is_ready(&reader, partitions);
        free(response);
        if (ready)
            break;
        pause_before_retry(deadline, "the topic did not get leaders for all partitions");
    }
    free(rest.bytes);
}

void produce_partition_part(struct writer *writer, const char *topic, int32_t partition, int16_t acks,
                            size_t batch_bytes) {
    write_header_rest(writer);
    write_unsigned_varint(writer, 0); /* no transactional id */
    write_int16(writer, acks);
    write_int32(writer, REQUEST_TIMEOUT_MS);
    write_unsigned_varint(writer, 2); /* one topic */
    write_compact_string(writer, topic);
    write_unsigned_varint(writer, 2); /* one partition */
    write_int32(writer, partition);
    write_unsigned_varint(writer, batch_bytes + 1);
}

int16_t read_produce_response(struct reader *reader, int32_t correlation_id, int32_t partition) {
    check_correlation(reader, correlation_id);
    skip_tagged_fields(reader);
    uint64_t topics = read_unsigned_varint(reader);
    skip_compact_string(reader);
    uint64_t partitions = read_unsigned_varint(reader);
    int32_t index = read_int32(reader);
    int16_t error = read_int16(reader);
    int64_t base_offset = read_int64(reader);
    if (reader->failed || topics != 2 || partitions != 2 || index != partition)
        fail("the response to Produce for partition %" PRId32 " cannot be read", partition);
    if (!error && base_offset < 0)
        fail("partition %" PRId32 " acknowledged at offset %" PRId64, partition, base_offset);
    return error;
}

static int may_pass(int16_t error) {
    return error == ERROR_UNKNOWN_TOPIC_OR_PARTITION || error == ERROR_LEADER_NOT_AVAILABLE ||
           error == ERROR_NOT_LEADER_OR_FOLLOWER;
}

void broker_prime_partitions(const struct broker *broker, int socket, int32_t partitions, int16_t acks) {
    static const uint8_t tail[PRODUCE_TAIL_BYTES] = {0};
    size_t batch_bytes;
    uint8_t *batch = record_batch_new(RECORD_BATCH_HEADER_BYTES + 20, 1, &batch_bytes);
    uint64_t deadline = broker_deadline();
    for (int32_t i = 0; i < partitions; i++) {
        struct writer rest = {0};
        produce_partition_part(&rest, broker->topic, i, acks, batch_bytes);
        write_bytes(&rest, batch, batch_bytes);
        write_bytes(&rest, tail, sizeof tail);
        for (;;) {
            struct reader reader;
            uint8_t *response = broker_exchange(socket, API_PRODUCE, PRODUCE_VERSION, i, &rest, &reader);
            int16_t error = read_produce_response(&reader, i, i);
            free(response);
            if (!error)
                break;
            if (!may_pass(error))
                fail("partition %" PRId32 " refused its first record: error %d", i, error);
            pause_before_retry(deadline, "not every partition took its first record");
        }
        free(rest.bytes);
    }
    free(batch);
}

size_t fetch_rest(struct writer *writer, const char *topic, int32_t partition, int32_t max_bytes,
                  int32_t max_wait_ms) {
    write_header_rest(writer);
    write_int32(writer, -1); /* a consumer, not a replica */
    write_int32(writer, max_wait_ms);
    write_int32(writer, 1); /* least bytes */
    write_int32(writer, max_bytes);
    write_int8(writer, 0);            /* read uncommitted */
    write_int32(writer, 0);           /* no session */
    write_int32(writer, -1);          /* and none to begin */
    write_unsigned_varint(writer, 2); /* one topic */
    write_compact_string(writer, topic);
    write_unsigned_varint(writer, 2); /* one partition */
    write_int32(writer, partition);
    write_int32(writer, -1); /* leader epoch unknown */
    size_t offset_place = writer->size;
    write_int64(writer, 0);
    write_int32(writer, -1); /* last fetched epoch unknown */
    write_int64(writer, -1); /* log start offset: followers only */
    write_int32(writer, max_bytes);
    write_unsigned_varint(writer, 0);
    write_unsigned_varint(writer, 0);
    write_unsigned_varint(writer, 1); /* nothing forgotten */
    write_unsigned_varint(writer, 1); /* no rack */
    write_unsigned_varint(writer, 0);
    return offset_place;
}

int16_t read_fetch_response(struct reader *reader, int32_t correlation_id, int32_t partition,
                            uint64_t *records_bytes) {
    check_correlation(reader, correlation_id);
    skip_tagged_fields(reader);
    read_int32(reader); /* throttle time */
    int16_t error = read_int16(reader);
    read_int32(reader); /* session */
    uint64_t topics = read_unsigned_varint(reader);
    if (!reader->failed && error)
        return error;
    skip_compact_string(reader);
    uint64_t partitions = read_unsigned_varint(reader);
    int32_t index = read_int32(reader);
    error = read_int16(reader);
    read_bytes(reader, 24); /* high watermark, last stable offset, log start offset */
    uint64_t aborted = read_unsigned_varint(reader);
    read_int32(reader); /* preferred replica */
    uint64_t length = read_unsigned_varint(reader);
    if (reader->failed || topics != 2 || partitions != 2 || index != partition || aborted > 1)
        fail("the response to Fetch for partition %" PRId32 " cannot be read", partition);
    *records_bytes = length ? length - 1 : 0;
    return error;
}
