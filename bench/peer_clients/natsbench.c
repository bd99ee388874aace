/* NATS JetStream through the NATS C client: asynchronous publishes with a bounded number in flight, and an ordered
 * push consumer. */
#include "peer.h"

#include <nats/nats.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN_FLIGHT = 4096 };

struct progress {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t received, wanted;
    size_t size;
    bool bad;
};

static void must(natsStatus status, const char *what)
{
    if (status != NATS_OK)
        peer_fail(what, nats_GetLastError(NULL) ? nats_GetLastError(NULL) : natsStatus_GetText(status));
}

static void on_publish_error(jsCtx *js, jsPubAckErr *error, void *closure)
{
    (void)js;
    (void)closure;
    peer_fail("nats publish", error->ErrText);
}

static void on_message(natsConnection *connection, natsSubscription *subscription, natsMsg *message, void *closure)
{
    (void)connection;
    (void)subscription;
    struct progress *progress = closure;
    pthread_mutex_lock(&progress->lock);
    progress->received++;
    if ((size_t)natsMsg_GetDataLength(message) != progress->size)
        progress->bad = true;
    if (progress->received >= progress->wanted || progress->bad)
        pthread_cond_signal(&progress->changed);
    pthread_mutex_unlock(&progress->lock);
    natsMsg_Destroy(message);
}

static uint64_t produce(jsCtx *js, const struct run *run, double *started)
{
    jsStreamConfig config;
    jsStreamConfig_Init(&config);
    config.Name = run->name;
    const char *subjects[] = {run->name};
    config.Subjects = subjects;
    config.SubjectsLen = 1;
    config.Storage = js_FileStorage;
    jsErrCode code = 0;
    must(js_AddStream(NULL, js, &config, NULL, &code), "nats add stream");
    char *payload = peer_payload(run->size);
    *started = peer_now();
    uint64_t sent = 0;
    while (sent < run->count) {
        must(js_PublishAsync(js, run->name, payload, (int)run->size, NULL), "nats publish");
        if (++sent % 1024 == 0 && peer_now() - *started > run->seconds_max)
            break;
    }
    jsPubOptions options;
    jsPubOptions_Init(&options);
    options.MaxWait = 60000;
    must(js_PublishAsyncComplete(js, &options), "nats publish");
    free(payload);
    return sent;
}

static uint64_t consume(jsCtx *js, const struct run *run, double *started)
{
    struct progress progress = {.wanted = run->count, .size = run->size};
    pthread_mutex_init(&progress.lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&progress.changed, &attributes);
    jsSubOptions options;
    jsSubOptions_Init(&options);
    options.Stream = run->name;
    options.Ordered = true;
    natsSubscription *subscription = NULL;
    jsErrCode code = 0;
    *started = peer_now();
    must(js_Subscribe(&subscription, js, run->name, on_message, &progress, NULL, &options, &code), "nats subscribe");
    double deadline = *started + run->seconds_max;
    struct timespec until = {.tv_sec = (time_t)deadline + 1};
    pthread_mutex_lock(&progress.lock);
    while (progress.received < progress.wanted && !progress.bad)
        if (pthread_cond_timedwait(&progress.changed, &progress.lock, &until))
            break;
    uint64_t received = progress.received;
    if (progress.bad)
        peer_fail("nats", "a message of another size");
    pthread_mutex_unlock(&progress.lock);
    return received;
}

int main(int argc, char **argv)
{
    struct run run = peer_parse(argc, argv);
    char url[128];
    snprintf(url, sizeof url, "nats://%s:%d", run.host, run.port);
    natsConnection *connection = NULL;
    natsOptions *options = NULL;
    must(natsOptions_Create(&options), "nats");
    must(natsOptions_SetURL(options, url), "nats");
    /* A slow consumer's messages would be dropped and asked for again: room for all of them instead. */
    must(natsOptions_SetMaxPendingMsgs(options, 10000000), "nats");
    must(natsConnection_Connect(&connection, options), "nats connect");
    jsOptions js_options;
    jsOptions_Init(&js_options);
    js_options.PublishAsync.MaxPending = IN_FLIGHT;
    js_options.PublishAsync.StallWait = 30000;
    js_options.PublishAsync.ErrHandler = on_publish_error;
    jsCtx *js = NULL;
    must(natsConnection_JetStream(&js, connection, &js_options), "nats jetstream");
    double started = 0;
    uint64_t messages = run.produce ? produce(js, &run, &started) : consume(js, &run, &started);
    char client[64];
    snprintf(client, sizeof client, "NATS C client %s", nats_GetVersion());
    peer_report(&run, messages, started, client);
    fflush(stdout);
    /* The library's threads may still hold the connection: the process ends with all of it at once. */
    _Exit(0);
}
