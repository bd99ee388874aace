#include "raw_wire.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "measure.h"
#include "payload.h"

void write_bytes(struct writer *writer, const void *bytes, size_t size) {
    if (writer->size + size > writer->capacity) {
        writer->capacity = (writer->size + size) * 2;
        writer->bytes = realloc(writer->bytes, writer->capacity);
        if (!writer->bytes)
            fail("no memory for a request of %zu bytes", writer->capacity);
    }
    if (size)
        memcpy(writer->bytes + writer->size, bytes, size);
    writer->size += size;
}

static void put_big_endian(uint8_t *place, uint64_t value, int size) {
    for (int i = 0; i < size; i++)
        place[i] = (uint8_t)(value >> (8 * (size - 1 - i)));
}

void put_int32(uint8_t *place, int32_t value) {
    put_big_endian(place, (uint64_t)(int64_t)value, 4);
}

void put_int64(uint8_t *place, int64_t value) {
    put_big_endian(place, (uint64_t)value, 8);
}

static void write_big_endian(struct writer *writer, uint64_t value, int size) {
    uint8_t bytes[8];
    put_big_endian(bytes, value, size);
    write_bytes(writer, bytes, (size_t)size);
}

void write_int8(struct writer *writer, int8_t value) {
    write_big_endian(writer, (uint64_t)(int64_t)value, 1);
}

void write_int16(struct writer *writer, int16_t value) {
    write_big_endian(writer, (uint64_t)(int64_t)value, 2);
}

void write_int32(struct writer *writer, int32_t value) {
    write_big_endian(writer, (uint64_t)(int64_t)value, 4);
}

void write_int64(struct writer *writer, int64_t value) {
    write_big_endian(writer, (uint64_t)value, 8);
}

void write_unsigned_varint(struct writer *writer, uint64_t value) {
    uint8_t bytes[10];
    size_t size = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[size++] = (uint8_t)(value | 0x80);
    bytes[size++] = (uint8_t)value;
    write_bytes(writer, bytes, size);
}

static void write_varint(struct writer *writer, int64_t value) {
    write_unsigned_varint(writer, ((uint64_t)value << 1) ^ (uint64_t)(value >> 63));
}

void write_compact_string(struct writer *writer, const char *text) {
    size_t size = strlen(text);
    write_unsigned_varint(writer, size + 1);
    write_bytes(writer, text, size);
}

void put_request_start(uint8_t *place, size_t request_bytes, int16_t api, int16_t version, int32_t correlation_id) {
    put_int32(place, (int32_t)(request_bytes - 4));
    put_big_endian(place + 4, (uint64_t)(uint16_t)api, 2);
    put_big_endian(place + 6, (uint64_t)(uint16_t)version, 2);
    put_int32(place + 8, correlation_id);
}

void write_header_rest(struct writer *writer) {
    static const char client_id[] = "rawbench";
    /* The client id is not compact in any version of the header. */
    write_int16(writer, sizeof client_id - 1);
    write_bytes(writer, client_id, sizeof client_id - 1);
    write_unsigned_varint(writer, 0);
}

const uint8_t *read_bytes(struct reader *reader, size_t size) {
    if (reader->failed || size > reader->left) {
        reader->failed = 1;
        return NULL;
    }
    const uint8_t *found = reader->bytes;
    reader->bytes += size;
    reader->left -= size;
    return found;
}

static uint64_t read_big_endian(struct reader *reader, size_t size) {
    const uint8_t *bytes = read_bytes(reader, size);
    uint64_t value = 0;
    for (size_t i = 0; bytes && i < size; i++)
        value = value << 8 | bytes[i];
    return value;
}

int16_t read_int16(struct reader *reader) {
    return (int16_t)read_big_endian(reader, 2);
}

int32_t read_int32(struct reader *reader) {
    return (int32_t)read_big_endian(reader, 4);
}

int64_t read_int64(struct reader *reader) {
    return (int64_t)read_big_endian(reader, 8);
}

uint64_t read_unsigned_varint(struct reader *reader) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        const uint8_t *byte = read_bytes(reader, 1);
        if (!byte)
            return 0;
        value |= (uint64_t)(*byte & 0x7f) << shift;
        if (!(*byte & 0x80))
            return value;
    }
    reader->failed = 1;
    return 0;
}

void skip_compact_string(struct reader *reader) {
    uint64_t size = read_unsigned_varint(reader);
    if (size > 1)
        read_bytes(reader, size - 1);
}

char *read_compact_string(struct reader *reader) {
    uint64_t size = read_unsigned_varint(reader);
    size = size ? size - 1 : 0;
    const uint8_t *found = read_bytes(reader, size);
    char *text = allocate(found ? size + 1 : 1, 1);
    if (found)
        memcpy(text, found, size);
    return text;
}

void skip_tagged_fields(struct reader *reader) {
    uint64_t count = read_unsigned_varint(reader);
    for (uint64_t i = 0; i < count && !reader->failed; i++) {
        read_unsigned_varint(reader);
        read_bytes(reader, read_unsigned_varint(reader));
    }
}

uint32_t crc32c(const uint8_t *bytes, size_t size) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++)
                value = value & 1 ? value >> 1 ^ 0x82f63b78u : value >> 1;
            table[i] = value;
        }
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++)
        crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    return ~crc;
}

static size_t varint_bytes(int64_t value) {
    uint64_t folded = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    size_t size = 1;
    while (folded >>= 7)
        size++;
    return size;
}

/* A record without its own length: attributes, time delta, offset delta, null key, value, no headers. */
static size_t record_body_bytes(int32_t offset_delta, size_t value_bytes) {
    return 1 + 1 + varint_bytes(offset_delta) + 1 + varint_bytes((int64_t)value_bytes) + value_bytes + 1;
}

static size_t record_bytes(int32_t offset_delta, size_t value_bytes) {
    size_t body = record_body_bytes(offset_delta, value_bytes);
    return varint_bytes((int64_t)body) + body;
}

static size_t all_records_bytes(int32_t record_count, size_t value_bytes) {
    size_t total = 0;
    for (int32_t i = 0; i < record_count; i++)
        total += record_bytes(i, value_bytes);
    return total;
}

static void write_record(struct writer *writer, int32_t offset_delta, const uint8_t *value, size_t value_bytes) {
    write_varint(writer, (int64_t)record_body_bytes(offset_delta, value_bytes));
    write_int8(writer, 0);
    write_varint(writer, 0);
    write_varint(writer, offset_delta);
    write_varint(writer, -1);
    write_varint(writer, (int64_t)value_bytes);
    write_bytes(writer, value, value_bytes);
    write_varint(writer, 0);
}

static void write_batch_header(struct writer *writer, int32_t record_count) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t timestamp_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    write_int64(writer, 0);                /* base offset: the broker's to give */
    write_int32(writer, 0);                /* length, set when it is known */
    write_int32(writer, -1);               /* partition leader epoch: the broker's to give */
    write_int8(writer, 2);                 /* magic */
    write_int32(writer, 0);                /* CRC, set at the end */
    write_int16(writer, 0);                /* attributes: plain, create time */
    write_int32(writer, record_count - 1); /* last offset delta */
    write_int64(writer, timestamp_ms);
    write_int64(writer, timestamp_ms);
    write_int64(writer, -1); /* no producer id, epoch or sequence: not idempotent */
    write_int16(writer, -1);
    write_int32(writer, -1);
    write_int32(writer, record_count);
}

uint8_t *record_batch_new(size_t batch_bytes, int32_t record_count, size_t *actual_bytes) {
    size_t least = RECORD_BATCH_HEADER_BYTES + all_records_bytes(record_count, 0);
    if (batch_bytes < least)
        return NULL;
    size_t room = batch_bytes - RECORD_BATCH_HEADER_BYTES;
    size_t value_bytes = room / (size_t)record_count;
    while (all_records_bytes(record_count, value_bytes) > room)
        value_bytes--;
    /* The last record takes what the division left over. */
    size_t before_last = all_records_bytes(record_count - 1, value_bytes);
    size_t last_bytes = value_bytes;
    while (before_last + record_bytes(record_count - 1, last_bytes + 1) <= room)
        last_bytes++;
    uint8_t *value = allocate(last_bytes, 1);
    struct writer writer = {0};
    write_batch_header(&writer, record_count);
    for (int32_t i = 0; i < record_count; i++) {
        size_t size = i == record_count - 1 ? last_bytes : value_bytes;
        payload_fill_random(value, size, (uint64_t)i);
        write_record(&writer, i, value, size);
    }
    free(value);
    put_int32(writer.bytes + 8, (int32_t)(writer.size - 12));
    put_int32(writer.bytes + 17, (int32_t)crc32c(writer.bytes + 21, writer.size - 21));
    *actual_bytes = writer.size;
    return writer.bytes;
}
