/* A consumer group under change: one member is killed, one more joins, or all are restarted one after the other, while
 * every partition is given messages at a steady rate. Each member is a process of its own, as it would be in service,
 * and so is the producer; this process has no client and only looks at the board that they write to. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "measure.h"
#include "rd_board.h"
#include "rd_client.h"

/* Longer than the longest session timeout of a broker's default settings and what follows it. */
#define PATIENCE_SECONDS 90
#define TURN_MS 10
/* A change is over when nothing moved for this long: several heartbeats of the classic protocols. */
#define QUIET_MS 1500
#define MESSAGE_BYTES 100

struct group_run {
    const struct settings *settings;
    struct group_board *board;
    pid_t producer;
    pid_t *members;
    /* Numbers given so far. */
    int started;
};

/* In a member's process. */
struct member {
    struct group_board *board;
    int number;
    int assigned;
};

static volatile sig_atomic_t asked_to_leave;

static void on_terminate(int number) {
    (void)number;
    asked_to_leave = 1;
}

static void pause_ms(long milliseconds) {
    struct timespec pause = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

/* Gives 0 in the child, which does not outlive its parent. */
static pid_t fork_child(void) {
    pid_t parent = getpid();
    pid_t child = fork();
    if (child < 0)
        fail("cannot start a process: %s", strerror(errno));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return child;
}

static void on_rebalance(rd_kafka_t *handle, rd_kafka_resp_err_t error, rd_kafka_topic_partition_list_t *partitions,
                         void *opaque) {
    struct member *member = opaque;
    int gives = error == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
    if (strcmp(rd_kafka_rebalance_protocol(handle), "COOPERATIVE") == 0) {
        rd_kafka_error_t *refusal = gives ? rd_kafka_incremental_assign(handle, partitions)
                                          : rd_kafka_incremental_unassign(handle, partitions);
        if (refusal)
            fail("an assignment was refused: %s", rd_kafka_error_string(refusal));
        member->assigned += gives ? partitions->cnt : -partitions->cnt;
    } else {
        rd_kafka_resp_err_t refusal = rd_kafka_assign(handle, gives ? partitions : NULL);
        if (refusal)
            fail("an assignment was refused: %s", rd_kafka_err2str(refusal));
        member->assigned = gives ? partitions->cnt : 0;
    }
    board_note_assigned(member->board, member->number, member->assigned, monotonic_ns());
}

static rd_kafka_conf_t *member_conf(const struct settings *settings, struct member *member) {
    rd_kafka_conf_t *conf = client_conf(settings);
    client_set(conf, "group.id", settings->topic);
    client_set(conf, "auto.offset.reset", "earliest");
    client_set(conf, "auto.commit.interval.ms", "500");
    client_set(conf, "fetch.wait.max.ms", "100");
    client_set(conf, "fetch.min.bytes", "1");
    if (strcmp(settings->protocol, "consumer") == 0) {
        /* Here the broker sets the session timeout and the heartbeats. */
        client_set(conf, "group.protocol", "consumer");
    } else {
        int eager = strcmp(settings->protocol, "eager") == 0;
        client_set(conf, "partition.assignment.strategy", eager ? "range" : "cooperative-sticky");
        client_set_count(conf, "session.timeout.ms", settings->session_ms);
        client_set_count(conf, "heartbeat.interval.ms", settings->heartbeat_ms);
    }
    client_set_all(conf, settings->consumer);
    rd_kafka_conf_set_rebalance_cb(conf, on_rebalance);
    rd_kafka_conf_set_opaque(conf, member);
    return conf;
}

static _Noreturn void member_main(const struct settings *settings, struct member *member) {
    signal(SIGTERM, on_terminate);
    rd_kafka_t *handle = client_new(RD_KAFKA_CONSUMER, member_conf(settings, member));
    rd_kafka_poll_set_consumer(handle);
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, settings->topic, RD_KAFKA_PARTITION_UA);
    rd_kafka_resp_err_t error = rd_kafka_subscribe(handle, topics);
    if (error)
        fail("cannot subscribe to %s: %s", settings->topic, rd_kafka_err2str(error));
    while (!asked_to_leave) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(handle, TURN_MS);
        if (!message)
            continue;
        if (message->err)
            /* librdkafka retries; if that does not help, the missing messages show. */
            fprintf(stderr, "%s: member %d: %s\n", program_name, member->number, rd_kafka_message_errstr(message));
        else
            board_note_read(member->board, message->partition, member->number, monotonic_ns());
        rd_kafka_message_destroy(message);
    }
    error = rd_kafka_consumer_close(handle);
    if (error)
        fail("member %d did not leave: %s", member->number, rd_kafka_err2str(error));
    _exit(0);
}

static void on_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque) {
    (void)handle;
    (void)opaque;
    if (message->err)
        fail("a message was not delivered: %s", rd_kafka_err2str(message->err));
}

/* One message to each partition at each tick; late ones are not made up for. */
static _Noreturn void producer_main(const struct settings *settings) {
    rd_kafka_conf_t *conf = client_conf(settings);
    client_set(conf, "acks", settings->acks);
    client_set(conf, "linger.ms", "0");
    client_set_all(conf, settings->producer);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_t *handle = client_new(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(handle, settings->topic, NULL);
    if (!topic)
        fail("topic %s: %s", settings->topic, rd_kafka_err2str(rd_kafka_last_error()));
    char payload[MESSAGE_BYTES];
    memset(payload, 't', sizeof payload);
    uint64_t interval_ns = NANOSECONDS / (uint64_t)settings->rate;
    for (uint64_t due = monotonic_ns();; due += interval_ns) {
        for (int32_t i = 0; i < settings->partitions; i++)
            if (rd_kafka_produce(topic, i, RD_KAFKA_MSG_F_COPY, payload, sizeof payload, NULL, 0, NULL))
                fail("a message was refused: %s", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(handle, 0);
        uint64_t now = monotonic_ns();
        if (now < due + interval_ns)
            pause_ms((long)((due + interval_ns - now) / 1000000));
        else
            due = now;
    }
}

static void await_end(pid_t child, const char *what) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail("cannot wait for %s: %s", what, strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail("%s failed", what);
}

/* A separate process creates the topic: a client's threads would not survive the forks that follow. */
static void make_topic(const struct settings *settings) {
    pid_t child = fork_child();
    if (child == 0) {
        client_ensure_topic(client_new(RD_KAFKA_PRODUCER, client_conf(settings)), settings);
        _exit(0);
    }
    await_end(child, "creating the topic");
}

static int start_member(struct group_run *run) {
    int number = run->started++;
    atomic_store(&run->board->members[number].alive, 1);
    pid_t child = fork_child();
    if (child == 0) {
        struct member member = {.board = run->board, .number = number};
        member_main(run->settings, &member);
    }
    run->members[number] = child;
    return number;
}

/* Fails when a process that should run has ended. */
static void check_processes(struct group_run *run) {
    int status;
    pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended == run->producer)
        fail("the producer failed");
    if (ended > 0)
        fail("a member of the group failed");
}

static void await_stable(struct group_run *run, const char *what) {
    uint64_t deadline = monotonic_ns() + PATIENCE_SECONDS * NANOSECONDS;
    while (!board_is_stable(run->board)) {
        check_processes(run);
        if (monotonic_ns() > deadline) {
            struct group_board *board = run->board;
            for (int i = 0; i < run->started; i++)
                fprintf(stderr, "%s: member %d, alive %d, has %d partitions\n", program_name, i,
                        atomic_load(&board->members[i].alive), atomic_load(&board->members[i].assigned));
            fail("the group was not stable %d s after %s", PATIENCE_SECONDS, what);
        }
        pause_ms(1);
    }
}

/* Stable, and for so long without a change that none is to come. */
static void await_quiet(struct group_run *run, const char *what) {
    for (;;) {
        await_stable(run, what);
        uint64_t assigned_ns = atomic_load(&run->board->last_assignment_ns);
        for (int waited_ms = 0; waited_ms < QUIET_MS; waited_ms += TURN_MS) {
            pause_ms(TURN_MS);
            check_processes(run);
        }
        if (atomic_load(&run->board->last_assignment_ns) == assigned_ns && board_is_stable(run->board))
            return;
    }
}

static void note_gone(struct group_run *run, int number) {
    atomic_store(&run->board->members[number].alive, 0);
    board_note_assigned(run->board, number, 0, monotonic_ns());
}

static int *readers_now(struct group_board *board) {
    int *readers = allocate((size_t)board->partition_count, sizeof *readers);
    for (int i = 0; i < board->partition_count; i++)
        readers[i] = atomic_load(&board->partitions[i].reader);
    return readers;
}

/* When the last of the partitions that changed hands was read by its new reader; 0 where none did. */
static uint64_t last_change(struct group_board *board, const int *before, int only_from) {
    uint64_t last = 0;
    for (int i = 0; i < board->partition_count; i++) {
        if (atomic_load(&board->partitions[i].reader) == before[i] || (only_from != NOBODY && before[i] != only_from))
            continue;
        uint64_t since = atomic_load(&board->partitions[i].reader_since_ns);
        last = since > last ? since : last;
    }
    return last;
}

static void report_kept(struct group_board *board, const int *before, uint64_t from_ns) {
    uint64_t now = monotonic_ns(), longest = 0, kept = 0;
    for (int32_t i = 0; i < board->partition_count; i++) {
        /* A partition that went to another and came back was not kept. */
        if (atomic_load(&board->partitions[i].reader) != before[i] ||
            atomic_load(&board->partitions[i].reader_since_ns) > from_ns)
            continue;
        uint64_t gap = board_longest_gap(board, i, now);
        longest = gap > longest ? gap : longest;
        kept++;
    }
    json_count("kept_partitions", kept);
    if (kept)
        json_number("kept_pause_ms", (double)longest / 1e6);
}

static void report_gaps(struct group_board *board) {
    struct samples gaps = {0};
    uint64_t now = monotonic_ns();
    for (int32_t i = 0; i < board->partition_count; i++)
        samples_add(&gaps, board_longest_gap(board, i, now));
    samples_sort(&gaps);
    json_number("longest_gap_ms", samples_percentile_ms(&gaps, 100));
    json_number("typical_gap_ms", samples_percentile_ms(&gaps, 50));
    free(gaps.values);
}

static void run_kill(struct group_run *run) {
    struct group_board *board = run->board;
    int victim = run->started - 1;
    int *before = readers_now(board);
    board_forget_gaps(board);
    uint64_t killed_ns = monotonic_ns();
    if (kill(run->members[victim], SIGKILL))
        fail("cannot kill member %d: %s", victim, strerror(errno));
    waitpid(run->members[victim], NULL, 0);
    note_gone(run, victim);
    await_quiet(run, "a member was killed");
    json_number("takeover_s", seconds_between(killed_ns, last_change(board, before, victim)));
    report_kept(board, before, killed_ns);
    free(before);
}

static void run_join(struct group_run *run) {
    struct group_board *board = run->board;
    int *before = readers_now(board);
    board_forget_gaps(board);
    uint64_t started_ns = monotonic_ns();
    start_member(run);
    await_quiet(run, "a member joined");
    json_number("settled_s", seconds_between(started_ns, last_change(board, before, NOBODY)));
    report_kept(board, before, started_ns);
    free(before);
}

static void run_restart(struct group_run *run) {
    board_forget_gaps(run->board);
    uint64_t started_ns = monotonic_ns();
    for (int i = 0; i < run->settings->members; i++) {
        if (kill(run->members[i], SIGTERM))
            fail("cannot end member %d: %s", i, strerror(errno));
        await_end(run->members[i], "a member that was to leave");
        note_gone(run, i);
        start_member(run);
        await_stable(run, "a member was restarted");
    }
    json_number("restart_s", seconds_between(started_ns, monotonic_ns()));
    await_quiet(run, "the last member was restarted");
    report_gaps(run->board);
}

static void end_all(struct group_run *run) {
    for (int i = 0; i < run->started; i++)
        if (atomic_load(&run->board->members[i].alive)) {
            kill(run->members[i], SIGTERM);
            await_end(run->members[i], "a member that was to leave");
        }
    kill(run->producer, SIGKILL);
    waitpid(run->producer, NULL, 0);
}

int run_group(const struct settings *settings) {
    int most_members = 2 * (int)settings->members + 1;
    struct group_run run = {.settings = settings,
                            .board = board_new((int)settings->partitions, most_members),
                            .members = allocate((size_t)most_members, sizeof(pid_t))};
    make_topic(settings);
    run.producer = fork_child();
    if (run.producer == 0)
        producer_main(settings);
    for (int i = 0; i < settings->members; i++)
        start_member(&run);
    await_quiet(&run, "its start");
    /* What is printed is buffered: a failure after this prints nothing of it, as fail does not flush. */
    json_begin();
    json_count("members", (uint64_t)settings->members);
    json_count("partitions", (uint64_t)settings->partitions);
    if (strcmp(settings->event, "kill") == 0)
        run_kill(&run);
    else if (strcmp(settings->event, "join") == 0)
        run_join(&run);
    else
        run_restart(&run);
    json_count("read", atomic_load(&run.board->messages));
    end_all(&run);
    json_end();
    free(run.members);
    return 0;
}
