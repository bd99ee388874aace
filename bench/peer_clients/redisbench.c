/* Redis streams through hiredis: XADD in a pipeline of two windows, XREAD of a thousand entries at a time. */
#include "peer.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 1000 };

static redisReply *next_reply(redisContext *redis)
{
    redisReply *reply = NULL;
    if (redisGetReply(redis, (void **)&reply) != REDIS_OK)
        peer_fail("redis", redis->errstr);
    if (reply->type == REDIS_REPLY_ERROR)
        peer_fail("redis", reply->str);
    return reply;
}

static uint64_t produce(redisContext *redis, const struct run *run, double started)
{
    char *payload = peer_payload(run->size);
    const char *arguments[] = {"XADD", run->name, "*", "d", payload};
    const size_t lengths[] = {4, strlen(run->name), 1, 1, run->size};
    uint64_t sent = 0, acknowledged = 0;
    while (acknowledged < run->count) {
        bool late = peer_now() - started > run->seconds_max;
        if (late && acknowledged == sent)
            break;
        for (int i = 0; !late && i < WINDOW && sent < run->count; i++, sent++)
            redisAppendCommandArgv(redis, 5, arguments, lengths);
        /* One window stays in flight while the one before it is acknowledged. */
        uint64_t until = sent == run->count || late ? sent : sent - WINDOW;
        for (; acknowledged < until; acknowledged++)
            freeReplyObject(next_reply(redis));
    }
    free(payload);
    return acknowledged;
}

static uint64_t consume(redisContext *redis, const struct run *run, double started)
{
    uint64_t received = 0;
    char last[64] = "0-0";
    while (received < run->count && peer_now() - started < run->seconds_max) {
        redisAppendCommand(redis, "XREAD COUNT %d BLOCK 1000 STREAMS %s %s", WINDOW, run->name, last);
        redisReply *reply = next_reply(redis);
        if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 1) {
            redisReply *entries = reply->element[0]->element[1];
            for (size_t i = 0; i < entries->elements; i++)
                if (entries->element[i]->element[1]->element[1]->len != run->size)
                    peer_fail("redis", "an entry of another size");
            received += entries->elements;
            snprintf(last, sizeof last, "%s", entries->element[entries->elements - 1]->element[0]->str);
        }
        freeReplyObject(reply);
    }
    return received;
}

int main(int argc, char **argv)
{
    struct run run = peer_parse(argc, argv);
    redisContext *redis = redisConnect(run.host, run.port);
    if (!redis || redis->err)
        peer_fail("redis", redis ? redis->errstr : "no memory");
    double started = peer_now();
    uint64_t messages = run.produce ? produce(redis, &run, started) : consume(redis, &run, started);
    char client[64];
    snprintf(client, sizeof client, "hiredis %d.%d.%d", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    peer_report(&run, messages, started, client);
    redisFree(redis);
    return 0;
}
