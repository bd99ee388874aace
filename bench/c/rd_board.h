/* What the processes of a measured group share: who reads which partition, and how long each was not read. Knows no
 * clients. Everything in it is written by one process and read by others, so all of it is atomic. */
#ifndef RD_BOARD_H
#define RD_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#define NOBODY (-1)

struct group_partition {
    atomic_int reader;
    /* When the present reader read its first message. */
    atomic_uint_fast64_t reader_since_ns;
    atomic_uint_fast64_t last_read_ns;
    atomic_uint_fast64_t longest_gap_ns;
};

struct group_member {
    atomic_int alive;
    atomic_int assigned;
};

struct group_board {
    int partition_count;
    /* Every member that ever was has its own number. */
    int member_count;
    atomic_uint_fast64_t last_assignment_ns;
    atomic_uint_fast64_t messages;
    struct group_partition *partitions;
    struct group_member *members;
};

/* In memory that processes forked from here share. */
struct group_board *board_new(int partition_count, int member_count);

/* A member read a message. */
void board_note_read(struct group_board *board, int32_t partition, int member, uint64_t now_ns);

/* A member was given this many partitions, or has this many left. */
void board_note_assigned(struct group_board *board, int member, int assigned, uint64_t now_ns);

/* Count gaps from now on; one that is open now counts whole. */
void board_forget_gaps(struct group_board *board);

/* With the gap that is still open. */
uint64_t board_longest_gap(struct group_board *board, int32_t partition, uint64_t now_ns);

/* Every partition has a reader and was read since the last assignment, and the living members have equal shares. */
int board_is_stable(struct group_board *board);

#endif
