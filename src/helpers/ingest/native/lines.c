/* Lines of a text found, marked by the literals they hold, and read as records, without Python's lock.

   What the literals, heads and layouts are is told in tables made by `marks.py` and `rapid.py`; nothing here knows of
   any engine. The structs have the layout of numpy's aligned record types of the same fields. Every function gives the
   same as the reading of text in Python, or leaves the line to it. */

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#ifndef SOURCE_HASH
#define SOURCE_HASH ""
#endif

const char *source_hash(void) { return SOURCE_HASH; }

typedef const uint8_t *bytes;

static inline uint32_t load32(bytes p) { uint32_t word; memcpy(&word, p, 4); return word; }

static inline uint64_t load64(bytes p) { uint64_t word; memcpy(&word, p, 8); return word; }

/* ---- ends of lines -------------------------------------------------------------------------------------------- */

enum { HAS_CONTROL = 1, HAS_HIGH = 2, HAS_RETURN = 4, HAS_NUL = 8, HAS_ESCAPE = 16, HAS_WIDE_CONTROL = 32 };

/* Whether a control code of Unicode begins here: U+0080 to U+009F, or a direction of writing. */
static int is_wide_control(bytes at, bytes end) {
  if (at[0] == 0xC2) return end - at > 1 && at[1] >= 0x80 && at[1] <= 0x9F;
  if (at[0] != 0xE2 || end - at < 3) return 0;
  return (at[1] == 0x80 && at[2] >= 0xAA && at[2] <= 0xAE) || (at[1] == 0x81 && at[2] >= 0xA6 && at[2] <= 0xA9);
}

/* What is odd in the n bytes from `at` on, as HAS_ flags; adds to the number of returns right before a line feed. */
static uint32_t odd_in(bytes at, int64_t n, bytes end, int64_t *n_returns) {
  uint32_t odd = 0;
  for (int64_t i = 0; i < n; i++) {
    uint8_t code = at[i];
    if (code >= ' ' && code < 127) continue;
    if (code == '\r') {
      odd |= HAS_RETURN;
      *n_returns += at + i + 1 < end && at[i + 1] == '\n';
    } else if (code > 127) {
      odd |= HAS_HIGH | (is_wide_control(at + i, end) ? HAS_WIDE_CONTROL : 0);
    } else if (code != '\n' && code != '\t') {
      odd |= HAS_CONTROL | (code == 0 ? HAS_NUL : 0) | (code == 27 ? HAS_ESCAPE : 0);
    }
  }
  return odd;
}

#define GROUP_BYTES 64

/* Which of 64 bytes are line feeds, a bit each; `is_odd` if any other is no plain character. */
static inline uint64_t line_feeds(bytes at, int *is_odd) {
  uint64_t feeds = 0, odd = 0;
#ifdef __SSE2__
  for (int k = 0; k < GROUP_BYTES / 16; k++) {
    __m128i codes = _mm_loadu_si128((const __m128i *)(at + 16 * k));
    __m128i is_feed = _mm_cmpeq_epi8(codes, _mm_set1_epi8('\n'));
    /* as signed numbers, bytes above 127 are below 32 too */
    __m128i is_low = _mm_or_si128(_mm_cmplt_epi8(codes, _mm_set1_epi8(32)), _mm_cmpeq_epi8(codes, _mm_set1_epi8(127)));
    feeds |= (uint64_t)(uint16_t)_mm_movemask_epi8(is_feed) << (16 * k);
    odd |= (uint64_t)(uint16_t)_mm_movemask_epi8(is_low) << (16 * k);
  }
#else
  for (int k = 0; k < GROUP_BYTES; k++) {
    feeds |= (uint64_t)(at[k] == '\n') << k;
    odd |= (uint64_t)(at[k] < 32 || at[k] > 126) << k;
  }
#endif
  *is_odd = odd != feeds;
  return feeds;
}

/* Write where lines end behind their line feeds; return their number, -1 if there is no room for so many. `odd` gets
   the HAS_ flags of the whole text (control codes are those that are no tab, no return and no line feed), `n_returns`
   the number of returns right before a line feed. */
int64_t find_ends(bytes text, int64_t n, int64_t *ends, int64_t n_room, uint32_t *odd, int64_t *n_returns) {
  int64_t n_ends = 0, start = 0;
  *odd = 0;
  *n_returns = 0;
  for (; start + GROUP_BYTES <= n; start += GROUP_BYTES) {
    int is_odd;
    uint64_t feeds = line_feeds(text + start, &is_odd);
    if (is_odd) *odd |= odd_in(text + start, GROUP_BYTES, text + n, n_returns);
    if (n_ends + GROUP_BYTES > n_room) return -1;
    for (; feeds; feeds &= feeds - 1) ends[n_ends++] = start + __builtin_ctzll(feeds) + 1;
  }
  *odd |= odd_in(text + start, n - start, text + n, n_returns);
  if (n_ends + n - start > n_room) return -1;
  for (; start < n; start++)
    if (text[start] == '\n') ends[n_ends++] = start + 1;
  return n_ends;
}

/* ---- literals in lines ---------------------------------------------------------------------------------------- */

/* Every literal has as many windows of WINDOW_BYTES as a step has bytes, one byte apart: a look at every place a step
   apart meets one of them. */
#define BLOCK_BYTES 16384 /* stays in a core's first cache between two looks at it */
#define STEP 4
#define WINDOW_BYTES 3

struct entry { /* a window of a literal */
  uint64_t value, mask; /* the literal from the window on, up to eight bytes */
  int64_t back;         /* the window is so many bytes behind the literal's begin */
  int64_t at, n_bytes;  /* the literal in the pool */
  int64_t mark;         /* what it marks its line with */
};

struct search {
  bytes is_known;              /* 1 for a hash that some window has */
  const int32_t *starts;       /* entries of hash h: starts[h] to starts[h + 1] */
  const struct entry *entries;
  bytes pool;
  bytes first_marks;           /* per byte: what a line that begins with it is marked with */
  const int32_t *first_starts; /* per byte: the longer beginnings with it, first_starts[c] to first_starts[c + 1]: */
  const uint64_t *first_masks; /* eight bytes of the line under the mask */
  const uint64_t *first_values; /* equal the value */
  bytes beginning_marks;
};

static inline uint32_t hash_of(uint32_t word) { return ((word & 0xFFFFFF) * 2654435761u) >> 16; }

/* Eight bytes, zeros behind the end. */
static inline uint64_t load64_until(bytes p, bytes end) {
  if (end - p >= 8) return load64(p);
  uint64_t word = 0;
  memcpy(&word, p, end - p);
  return word;
}

static inline uint8_t begin_mark(bytes line, bytes end, const struct search *search) {
  if (line == end) return 0;
  uint8_t mark = search->first_marks[*line];
  for (int32_t k = search->first_starts[*line]; k < search->first_starts[*line + 1]; k++)
    if ((load64_until(line, end) & search->first_masks[k]) == search->first_values[k]) mark |= search->beginning_marks[k];
  return mark;
}

/* Whether the literal of an entry stands in the text where its window was met. */
static inline int stands(bytes at, bytes first, bytes end, const struct entry *entry, const struct search *search) {
  if ((load64_until(at, end) & entry->mask) != entry->value) return 0;
  bytes begin = at - entry->back;
  if (begin < first || end - begin < entry->n_bytes) return 0;
  return (entry->back == 0 && entry->n_bytes <= 8) || !memcmp(begin, search->pool + entry->at, entry->n_bytes);
}

/* Mark line k, text[offsets[k]] to text[offsets[k + 1]], with the marks of all literals it holds. */
void mark_lines(bytes text, const int64_t *offsets, int64_t n_lines, const struct search *search, uint8_t *marks) {
  if (!n_lines) return;
  bytes first = text + offsets[0], end = text + offsets[n_lines];
  uint16_t found[BLOCK_BYTES / STEP];
  int64_t line = 0;
  for (int64_t k = 0; k < n_lines; k++) marks[k] = begin_mark(text + offsets[k], text + offsets[k + 1], search);
  for (bytes block = first; block < end; block += BLOCK_BYTES) {
    int is_last = end - block < BLOCK_BYTES + 4;
    int64_t size = is_last && end - block < BLOCK_BYTES ? end - block : BLOCK_BYTES, n_found = 0;
    for (int64_t i = 0; i < size; i += STEP) {
      uint32_t hash = hash_of(is_last ? (uint32_t)load64_until(block + i, end) : load32(block + i));
      found[n_found] = (uint16_t)i;
      n_found += search->is_known[hash];
    }
    for (int64_t j = 0; j < n_found; j++) {
      bytes at = block + found[j];
      uint32_t hash = hash_of((uint32_t)load64_until(at, end));
      for (int32_t k = search->starts[hash]; k < search->starts[hash + 1]; k++) {
        const struct entry *entry = &search->entries[k];
        if (!stands(at, first, end, entry, search)) continue;
        int64_t begin = at - entry->back - text;
        while (offsets[line + 1] <= begin) line++;
        int64_t mine = line; /* another literal may have led to a later line */
        while (offsets[mine] > begin) mine--;
        if (offsets[mine + 1] >= begin + entry->n_bytes) marks[mine] |= (uint8_t)entry->mark;
      }
    }
  }
}

/* Count the lines with each number for marks. */
void count_marks(bytes marks, int64_t n_lines, int64_t *counts) {
  memset(counts, 0, 256 * sizeof *counts);
  for (int64_t k = 0; k < n_lines; k++) counts[marks[k]]++;
}

/* ---- records -------------------------------------------------------------------------------------------------- */

struct form { /* where the digits of a stamp stand in a head; below 0 where they are not printed */
  int64_t month_at, time_at, part_at, n_part, base_s;
  int64_t days[13]; /* days since 1970 of the first of each month, and of the next year */
};

struct group { /* heads of one length whose free bytes are at the same places */
  int64_t n_bytes, first_mask, form, first_slot, last_slot; /* of a table of 2^k slots: last_slot is 2^k - 1 */
};

struct head {
  int64_t place, first_value; /* the values of its masked words, as many as its group has masks */
};

struct plan { /* one layout: literal, value, literal, value, ..., tail */
  int64_t first_field, n_fields, tail_at, tail_bytes, first_piece, n_pieces;
};

enum { COUNT, NUMBER, FLAG, OTHER };

struct field {
  int64_t literal_at, literal_bytes, kind, column;
  double scale;
};

struct piece { /* of what goes to `extra`: a literal and the printed value of a field (below 0: none) */
  int64_t literal_at, literal_bytes, field;
};

struct reader {
  const struct form *forms;
  const struct group *groups;
  const uint64_t *masks;
  const int32_t *slots; /* number of a head + 1; 0 is empty */
  const struct head *heads;
  const uint64_t *values;
  const int64_t *first_plans; /* plans of place p: first_plans[p] to first_plans[p + 1] */
  const struct plan *plans;
  const struct field *fields;
  const struct piece *pieces;
  bytes pool;
  int64_t n_groups;
};

#define MAX_DIGITS 15  /* as a double holds all such whole numbers */
#define MAX_DECIMALS 7
#define MAX_FIELDS 128

static const int64_t POWERS[MAX_DECIMALS + 1] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};

static inline int is_digit(uint8_t code) { return (uint8_t)(code - '0') < 10; }

/* The digits from `at` on; as many as there are, 16 at most. */
static inline int64_t read_digits(bytes at, bytes end, int64_t *n_digits) {
  int64_t number = 0;
  bytes begin = at;
  while (at < end && at - begin <= MAX_DIGITS && is_digit(*at)) number = number * 10 + (*at++ - '0');
  *n_digits = at - begin;
  return number;
}

static inline int64_t pair(bytes at) { return is_digit(at[0]) && is_digit(at[1]) ? (at[0] - '0') * 10 + at[1] - '0' : -1; }

/* Read a stamp [us since 1970]; return whether it is one. */
static int read_stamp(bytes head, const struct form *form, int64_t *stamp_us) {
  bytes time = head + form->time_at;
  int64_t hour = pair(time), minute = pair(time + 3), second = pair(time + 6);
  if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) return 0;
  int64_t seconds = (hour * 60 + minute) * 60 + second + form->base_s;
  if (form->month_at >= 0) {
    int64_t month = pair(head + form->month_at), day = pair(head + form->month_at + 3);
    if (month < 1 || month > 12 || day < 1 || form->days[month - 1] + day - 1 >= form->days[month]) return 0;
    seconds += (form->days[month - 1] + day - 1) * 86400;
  }
  int64_t us = 0, unit = 100000;
  for (int64_t i = 0; i < form->n_part; i++, unit /= 10) {
    if (!is_digit(head[form->part_at + i])) return 0;
    us += (head[form->part_at + i] - '0') * unit;
  }
  *stamp_us = seconds * 1000000 + us;
  return 1;
}

/* The words of a line's begin without its free bytes; the last one may reach behind the text. */
static inline uint64_t masked(bytes line, bytes end, int64_t k, int64_t n_bytes, const uint64_t *masks) {
  bytes at = line + 8 * k;
  if (end - at >= 8) return load64(at) & masks[k];
  uint64_t word = 0;
  memcpy(&word, at, n_bytes - 8 * k < 8 ? n_bytes - 8 * k : 8);
  return word & masks[k];
}

#define SPREAD 0x9E3779B97F4A7C15u /* 2^64 over the golden ratio */

static inline uint64_t mix(uint64_t mixed, uint64_t word) {
  mixed = (mixed ^ word) * SPREAD;
  return mixed ^ (mixed >> 29);
}

/* As `rapid.py` asks it to place heads in their table. */
uint64_t mix_words(const uint64_t *words, int64_t n_words) {
  uint64_t mixed = 0;
  for (int64_t k = 0; k < n_words; k++) mixed = mix(mixed, words[k]);
  return mixed;
}

/* The head a line begins with, -1 if none is known. */
static int64_t find_head(bytes line, bytes line_end, bytes end, const struct reader *reader, int64_t *group_of) {
  for (int64_t g = 0; g < reader->n_groups; g++) {
    const struct group *group = &reader->groups[g];
    if (line_end - line < group->n_bytes) continue;
    int64_t n_words = (group->n_bytes + 7) / 8;
    const uint64_t *masks = reader->masks + group->first_mask;
    uint64_t mixed = 0;
    for (int64_t k = 0; k < n_words; k++) mixed = mix(mixed, masked(line, end, k, group->n_bytes, masks));
    for (uint64_t slot = mixed & group->last_slot;; slot = (slot + 1) & group->last_slot) {
      int64_t head = reader->slots[group->first_slot + slot] - 1;
      if (head < 0) break;
      const uint64_t *values = reader->values + reader->heads[head].first_value;
      int64_t k = 0;
      while (k < n_words && masked(line, end, k, group->n_bytes, masks) == values[k]) k++;
      if (k == n_words) {
        *group_of = g;
        return head;
      }
    }
  }
  return -1;
}

union value { int64_t whole; double number; };

/* Read the value of a field; return its length, 0 if it cannot be read. */
static int64_t read_value(bytes at, bytes end, const struct field *field, union value *value) {
  if (field->kind == FLAG) {
    value->whole = end - at >= 4 && !memcmp(at, "True", 4);
    return value->whole ? 4 : end - at >= 5 && !memcmp(at, "False", 5) ? 5 : 0;
  }
  int64_t n_digits, n_decimals = 0, number = read_digits(at, end, &n_digits), n_bytes = n_digits;
  if (!n_digits || n_digits > MAX_DIGITS) return 0;
  if (field->kind == COUNT) {
    value->whole = number;
    return n_bytes;
  }
  if (at + n_digits < end && at[n_digits] == '.') {
    int64_t decimals = read_digits(at + n_digits + 1, end, &n_decimals);
    if (n_decimals > MAX_DECIMALS || n_digits + n_decimals > MAX_DIGITS) return 0;
    number = number * POWERS[n_decimals] + decimals;
    n_bytes += n_decimals ? n_decimals + 1 : 0;
  }
  value->number = n_decimals ? (double)number / (double)POWERS[n_decimals] : (double)number;
  if (field->scale != 1.0) value->number *= field->scale;
  return n_bytes;
}

/* Read the body of a record from `at` to the end of its line; return whether it is of this plan. */
static int read_body(bytes at, bytes end, const struct plan *plan, const struct reader *reader, union value *values,
                     bytes *begins, int64_t *sizes) {
  const struct field *field = reader->fields + plan->first_field;
  for (int64_t f = 0; f < plan->n_fields; f++, field++) {
    if (end - at < field->literal_bytes || memcmp(at, reader->pool + field->literal_at, field->literal_bytes)) return 0;
    at += field->literal_bytes;
    begins[f] = at;
    sizes[f] = read_value(at, end, field, &values[f]);
    if (!sizes[f]) return 0;
    at += sizes[f];
  }
  return end - at == plan->tail_bytes && !memcmp(at, reader->pool + plan->tail_at, plan->tail_bytes);
}

/* Append what goes to `extra`, as JSON words it: no zeros in front. */
static uint8_t *write_extra(uint8_t *out, const struct plan *plan, const struct reader *reader, bytes *begins,
                            int64_t *sizes) {
  const struct piece *piece = reader->pieces + plan->first_piece;
  for (int64_t p = 0; p < plan->n_pieces; p++, piece++) {
    memcpy(out, reader->pool + piece->literal_at, piece->literal_bytes);
    out += piece->literal_bytes;
    if (piece->field < 0) continue;
    bytes from = begins[piece->field], to = from + sizes[piece->field];
    while (to - from > 1 && from[0] == '0' && is_digit(from[1])) from++;
    memcpy(out, from, to - from);
    out += to - from;
  }
  return out;
}

#define AHEAD 8 /* lines whose bytes are asked for before they are read: few of them follow each other */

/* Read the lines at `rows` of which head and layout are known; return how many were read.

   Per row: `heads` and `stamps_us` of its head (-1: none), `plans` of its layout (-1: not read). Per record read, in the
   order of the rows: a value in each of its plan's columns (column c of record k at columns[c * n_rows + k]), and the
   end of its part of `extra` in extra_ends[k + 1]. */
int64_t read_records(bytes text, int64_t n, const int64_t *offsets, const int64_t *rows, int64_t n_rows,
                     const struct reader *reader, int32_t *heads, int32_t *plans, int64_t *stamps_us, int64_t *columns,
                     uint8_t *extra, int64_t *extra_ends) {
  int64_t n_read = 0;
  uint8_t *out = extra;
  union value values[MAX_FIELDS];
  bytes begins[MAX_FIELDS];
  int64_t sizes[MAX_FIELDS];
  extra_ends[0] = 0;
  for (int64_t r = 0; r < n_rows; r++) {
    if (r + AHEAD < n_rows)
      for (int k = 0; k < 4; k++) __builtin_prefetch(text + offsets[rows[r + AHEAD]] + 64 * k);
    bytes line = text + offsets[rows[r]], end = text + offsets[rows[r] + 1];
    int64_t g, head = find_head(line, end, text + n, reader, &g);
    heads[r] = plans[r] = -1;
    stamps_us[r] = 0;
    if (head < 0 || !read_stamp(line, &reader->forms[reader->groups[g].form], &stamps_us[r])) continue;
    heads[r] = (int32_t)head;
    int64_t place = reader->heads[head].place;
    for (int64_t p = reader->first_plans[place]; p < reader->first_plans[place + 1]; p++) {
      const struct plan *plan = &reader->plans[p];
      if (!read_body(line + reader->groups[g].n_bytes, end, plan, reader, values, begins, sizes)) continue;
      const struct field *field = reader->fields + plan->first_field;
      for (int64_t f = 0; f < plan->n_fields; f++, field++)
        if (field->kind != OTHER) columns[field->column * n_rows + n_read] = values[f].whole;
      out = write_extra(out, plan, reader, begins, sizes);
      extra_ends[++n_read] = out - extra;
      plans[r] = (int32_t)p;
      break;
    }
  }
  return n_read;
}
