/* Command line options of the form --name VALUE, read into variables by a table. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdint.h>

enum option_kind { OPTION_TEXT, OPTION_COUNT, OPTION_SECONDS, OPTION_FLAG };

struct option_row {
    const char *name;
    enum option_kind kind;
    /* const char *, int64_t, double or int, by kind. */
    void *target;
    /* For OPTION_COUNT, both inclusive. */
    int64_t least;
    int64_t most;
    /* The word that means 0, if there is one. */
    const char *zero_word;
};

/* Anything unknown, missing a value or out of range ends the process with code 2. */
void options_read(const struct option_row *rows, int row_count, int argument_count, char **arguments);

/* Ends the process with code 2. */
_Noreturn void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
