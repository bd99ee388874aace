#include "options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"

_Noreturn void usage_error(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", program_name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static void read_count(const struct option_row *row, const char *text) {
    if (row->zero_word && strcmp(text, row->zero_word) == 0) {
        *(int64_t *)row->target = 0;
        return;
    }
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || *end || end == text || value < row->least || value > row->most)
        usage_error("--%s takes a number from %lld to %lld, not '%s'", row->name, (long long)row->least,
                    (long long)row->most, text);
    *(int64_t *)row->target = value;
}

static void read_seconds(const struct option_row *row, const char *text) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    /* Written so that NaN is refused too. */
    if (errno || *end || end == text || !(value >= 0.0 && value <= 86400.0))
        usage_error("--%s takes seconds from 0 to 86400, not '%s'", row->name, text);
    *(double *)row->target = value;
}

static const struct option_row *find_row(const struct option_row *rows, int row_count, const char *argument) {
    if (strncmp(argument, "--", 2) == 0)
        for (int i = 0; i < row_count; i++)
            if (strcmp(rows[i].name, argument + 2) == 0)
                return &rows[i];
    usage_error("'%s' is not an option here", argument);
}

void options_read(const struct option_row *rows, int row_count, int argument_count, char **arguments) {
    for (int i = 0; i < argument_count; i++) {
        const struct option_row *row = find_row(rows, row_count, arguments[i]);
        if (row->kind == OPTION_FLAG) {
            *(int *)row->target = 1;
            continue;
        }
        if (++i == argument_count)
            usage_error("--%s needs a value", row->name);
        if (row->kind == OPTION_TEXT)
            *(const char **)row->target = arguments[i];
        else if (row->kind == OPTION_COUNT)
            read_count(row, arguments[i]);
        else
            read_seconds(row, arguments[i]);
    }
}
