#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "measure.h"
#include "rd_board.h"

static void *shared_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("no shared memory of %zu bytes: %s", bytes, strerror(errno));
    return memory;
}

struct group_board *board_new(int partition_count, int member_count) {
    struct group_board *board = shared_memory(sizeof *board);
    board->partition_count = partition_count;
    board->member_count = member_count;
    board->partitions = shared_memory((size_t)partition_count * sizeof *board->partitions);
    board->members = shared_memory((size_t)member_count * sizeof *board->members);
    for (int i = 0; i < partition_count; i++)
        atomic_store(&board->partitions[i].reader, NOBODY);
    return board;
}

static void raise_to(atomic_uint_fast64_t *place, uint64_t value) {
    uint_fast64_t found = atomic_load(place);
    while (found < value && !atomic_compare_exchange_weak(place, &found, value))
        ;
}

void board_note_read(struct group_board *board, int32_t partition, int member, uint64_t now_ns) {
    struct group_partition *place = &board->partitions[partition];
    if (atomic_load(&place->reader) != member) {
        /* In this order: a process that sees the new reader also sees since when. */
        atomic_store(&place->reader_since_ns, now_ns);
        atomic_store(&place->reader, member);
    }
    uint64_t before = atomic_exchange(&place->last_read_ns, now_ns);
    if (before && now_ns > before)
        raise_to(&place->longest_gap_ns, now_ns - before);
    atomic_fetch_add(&board->messages, 1);
}

void board_note_assigned(struct group_board *board, int member, int assigned, uint64_t now_ns) {
    atomic_store(&board->members[member].assigned, assigned);
    raise_to(&board->last_assignment_ns, now_ns);
}

void board_forget_gaps(struct group_board *board) {
    for (int i = 0; i < board->partition_count; i++)
        atomic_store(&board->partitions[i].longest_gap_ns, 0);
}

uint64_t board_longest_gap(struct group_board *board, int32_t partition, uint64_t now_ns) {
    struct group_partition *place = &board->partitions[partition];
    uint64_t last = atomic_load(&place->last_read_ns), longest = atomic_load(&place->longest_gap_ns);
    uint64_t open = now_ns > last ? now_ns - last : 0;
    return open > longest ? open : longest;
}

int board_is_stable(struct group_board *board) {
    int least = board->partition_count, most = 0, sum = 0;
    for (int i = 0; i < board->member_count; i++) {
        if (!atomic_load(&board->members[i].alive))
            continue;
        int assigned = atomic_load(&board->members[i].assigned);
        least = assigned < least ? assigned : least;
        most = assigned > most ? assigned : most;
        sum += assigned;
    }
    if (sum != board->partition_count || least == 0 || most - least > 1)
        return 0;
    uint64_t assigned_ns = atomic_load(&board->last_assignment_ns);
    for (int i = 0; i < board->partition_count; i++) {
        struct group_partition *place = &board->partitions[i];
        int reader = atomic_load(&place->reader);
        if (reader == NOBODY || !atomic_load(&board->members[reader].alive) ||
            atomic_load(&place->last_read_ns) <= assigned_ns)
            return 0;
    }
    return 1;
}
