/* RabbitMQ queues through librabbitmq (AMQP 0.9.1): persistent publishes with confirms in a window, and a consumer
 * with a prefetch and one acknowledgement for many messages. */
#include "peer.h"

#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { WINDOW = 2000, PREFETCH = 2000, ACKNOWLEDGE_EVERY = 500 };

static void must_reply(amqp_rpc_reply_t reply, const char *what)
{
    if (reply.reply_type == AMQP_RESPONSE_NORMAL)
        return;
    if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
        peer_fail(what, amqp_error_string2(reply.library_error));
    peer_fail(what, "the server refused it");
}

static void must(int status, const char *what)
{
    if (status != AMQP_STATUS_OK)
        peer_fail(what, amqp_error_string2(status));
}

static void declare(amqp_connection_state_t amqp, const struct run *run)
{
    amqp_table_entry_t entry = {.key = amqp_cstring_bytes("x-queue-type")};
    entry.value.kind = AMQP_FIELD_KIND_UTF8;
    entry.value.value.bytes = amqp_cstring_bytes(run->kind);
    amqp_table_t arguments = {.num_entries = 1, .entries = &entry};
    amqp_queue_declare(amqp, 1, amqp_cstring_bytes(run->name), 0, 1, 0, 0, arguments);
    must_reply(amqp_get_rpc_reply(amqp), "declare the queue");
}

/* Confirms may come alone, out of order, or one for all up to a tag. */
struct confirms {
    unsigned char *seen;
    uint64_t low, count;
};

static void note_confirm(struct confirms *confirms, uint64_t tag, bool multiple)
{
    for (uint64_t at = multiple ? confirms->low : tag; at <= tag; at++) {
        confirms->count += !confirms->seen[at];
        confirms->seen[at] = 1;
    }
    while (confirms->seen[confirms->low])
        confirms->low++;
}

/* Take the confirms that are there; wait for at least one if `block`. */
static void take_confirms(amqp_connection_state_t amqp, struct confirms *confirms, bool block)
{
    for (;;) {
        amqp_frame_t frame;
        struct timeval timeout = {.tv_sec = block ? 30 : 0};
        int status = amqp_simple_wait_frame_noblock(amqp, &frame, &timeout);
        if (status == AMQP_STATUS_TIMEOUT && !block)
            return;
        must(status, "wait for confirms");
        if (frame.frame_type != AMQP_FRAME_METHOD || frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
            peer_fail("publish", "a message was not confirmed");
        amqp_basic_ack_t *ack = frame.payload.method.decoded;
        note_confirm(confirms, ack->delivery_tag, ack->multiple);
        amqp_maybe_release_buffers(amqp);
        block = false;
    }
}

static uint64_t produce(amqp_connection_state_t amqp, const struct run *run, double *started)
{
    declare(amqp, run);
    amqp_confirm_select(amqp, 1);
    must_reply(amqp_get_rpc_reply(amqp), "select confirms");
    char *payload = peer_payload(run->size);
    struct confirms confirms = {.seen = calloc(run->count + 2, 1), .low = 1};
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
    amqp_bytes_t body = {.len = run->size, .bytes = payload};
    *started = peer_now();
    uint64_t sent = 0;
    while (sent < run->count) {
        must(amqp_basic_publish(amqp, 1, amqp_empty_bytes, amqp_cstring_bytes(run->name), 0, 0, &properties, body),
             "publish");
        if (++sent % 100 == 0) {
            take_confirms(amqp, &confirms, false);
            if (peer_now() - *started > run->seconds_max)
                break;
        }
        while (sent - confirms.count >= WINDOW)
            take_confirms(amqp, &confirms, true);
    }
    while (confirms.count < sent)
        take_confirms(amqp, &confirms, true);
    free(confirms.seen);
    free(payload);
    return sent;
}

static uint64_t consume(amqp_connection_state_t amqp, const struct run *run, double *started)
{
    amqp_basic_qos(amqp, 1, 0, PREFETCH, 0);
    must_reply(amqp_get_rpc_reply(amqp), "set the prefetch");
    amqp_table_entry_t entry = {.key = amqp_cstring_bytes("x-stream-offset")};
    entry.value.kind = AMQP_FIELD_KIND_UTF8;
    entry.value.value.bytes = amqp_cstring_bytes("first");
    amqp_table_t arguments = {.num_entries = strcmp(run->kind, "stream") ? 0 : 1, .entries = &entry};
    *started = peer_now();
    amqp_basic_consume(amqp, 1, amqp_cstring_bytes(run->name), amqp_empty_bytes, 0, 0, 0, arguments);
    must_reply(amqp_get_rpc_reply(amqp), "consume");
    uint64_t received = 0;
    while (received < run->count && peer_now() - *started < run->seconds_max) {
        amqp_envelope_t envelope;
        struct timeval timeout = {.tv_sec = 10};
        amqp_maybe_release_buffers(amqp);
        must_reply(amqp_consume_message(amqp, &envelope, &timeout, 0), "consume");
        if (envelope.message.body.len != run->size)
            peer_fail("consume", "a message of another size");
        if (++received % ACKNOWLEDGE_EVERY == 0 || received == run->count)
            must(amqp_basic_ack(amqp, 1, envelope.delivery_tag, 1), "acknowledge");
        amqp_destroy_envelope(&envelope);
    }
    return received;
}

int main(int argc, char **argv)
{
    struct run run = peer_parse(argc, argv);
    if (strcmp(run.kind, "quorum") && strcmp(run.kind, "stream"))
        peer_fail("--kind", "quorum or stream");
    amqp_connection_state_t amqp = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(amqp);
    if (!socket)
        peer_fail("amqp", "no memory");
    must(amqp_socket_open(socket, run.host, run.port), "connect");
    must_reply(amqp_login(amqp, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest"), "log in");
    amqp_channel_open(amqp, 1);
    must_reply(amqp_get_rpc_reply(amqp), "open a channel");
    double started = 0;
    uint64_t messages = run.produce ? produce(amqp, &run, &started) : consume(amqp, &run, &started);
    char client[64];
    snprintf(client, sizeof client, "librabbitmq %s", amqp_version());
    peer_report(&run, messages, started, client);
    amqp_connection_close(amqp, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(amqp);
    return 0;
}
