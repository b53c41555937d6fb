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

#define SPREAD 0x9E3779B97F4A7C15u /* 2^64 over the golden ratio: mixes the bits of a number */

static inline uint64_t mix(uint64_t mixed, uint64_t word) {
  mixed = (mixed ^ word) * SPREAD;
  return mixed ^ (mixed >> 29);
}

static inline int is_digit(uint8_t code) { return (uint8_t)(code - '0') < 10; }

/* ---- lines ---------------------------------------------------------------------------------------------------- */

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
  uint64_t feeds = 0;
#ifdef __SSE2__
  const __m128i last = _mm_set1_epi8('~' - ' ');
  __m128i most = _mm_setzero_si128();
  for (int k = 0; k < GROUP_BYTES / 16; k++) {
    __m128i codes = _mm_loadu_si128((const __m128i *)(at + 16 * k));
    __m128i is_feed = _mm_cmpeq_epi8(codes, _mm_set1_epi8('\n'));
    feeds |= (uint64_t)(uint16_t)_mm_movemask_epi8(is_feed) << (16 * k);
    /* plain characters are ' ' to '~': without a sign, those below are far above */
    most = _mm_max_epu8(most, _mm_andnot_si128(is_feed, _mm_sub_epi8(codes, _mm_set1_epi8(' '))));
  }
  *is_odd = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(most, last), last)) != 0xFFFF;
#else
  uint64_t odd = 0;
  for (int k = 0; k < GROUP_BYTES; k++) {
    feeds |= (uint64_t)(at[k] == '\n') << k;
    odd |= (uint64_t)(at[k] < ' ' || at[k] > '~') << k;
  }
  *is_odd = odd != feeds;
#endif
  return feeds;
}

/* Write where lines begin, and last where the text ends; return the number of lines, -1 if there is no room for so many.
   `odd` gets the HAS_ flags of the whole text (control codes are those that are no tab, no return and no line feed),
   `n_returns` the number of returns right before a line feed, `longest` the bytes of the longest line. */
int64_t find_lines(bytes text, int64_t n, int64_t *offsets, int64_t n_room, uint32_t *odd, int64_t *n_returns,
                   int64_t *longest) {
  int64_t n_lines = 0, start = 0, begin = 0;
  *odd = 0;
  *n_returns = *longest = 0;
  offsets[0] = 0;
  for (; start < n; start += GROUP_BYTES) {
    int is_odd = 1;
    int64_t size = n - start < GROUP_BYTES ? n - start : GROUP_BYTES;
    uint64_t feeds = 0;
    if (size == GROUP_BYTES) feeds = line_feeds(text + start, &is_odd);
    else
      for (int64_t k = 0; k < size; k++) feeds |= (uint64_t)(text[start + k] == '\n') << k;
    if (is_odd) *odd |= odd_in(text + start, size, text + n, n_returns);
    if (n_lines + GROUP_BYTES + 1 > n_room) return -1;
    for (; feeds; feeds &= feeds - 1) {
      int64_t line_end = start + __builtin_ctzll(feeds) + 1;
      if (line_end - begin > *longest) *longest = line_end - begin;
      offsets[++n_lines] = begin = line_end;
    }
  }
  if (begin == n) return n_lines;
  if (n - begin > *longest) *longest = n - begin;
  offsets[++n_lines] = n;
  return n_lines;
}

/* ---- literals in lines ---------------------------------------------------------------------------------------- */

/* Every literal has as many windows of WINDOW_BYTES as a step has bytes, one byte apart: a look at every place a step
   apart meets one of them. */
#define STEP 4
#define WINDOW_BYTES 3
#define HASH_BITS 16

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
  const int64_t *numbered;     /* place and bytes of each literal with digits, in the pool once more with NUL for them */
  int64_t n_numbered;
};

static inline uint32_t hash_of(uint32_t word) { return ((word & 0xFFFFFF) * 2654435761u) >> (32 - HASH_BITS); }

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

/* ---- lines alike ---------------------------------------------------------------------------------------------- */

/* Most lines of a log are like one before but for digits at the same places: stamps, addresses, counts. Such a line has
   the marks of the one before. Only where a literal has digits of its own (`numbered`) they must be the same too. */
#define N_SHAPES 512 /* in pairs; logs have some fifty that come again and again */
#define SHAPE_BYTES 240 /* most statistic lines have fewer; a place in it fits a byte */
#define MIN_SHAPE_BYTES 16 /* shorter lines are searched as fast */
#define VECTOR_BYTES 16
#define MAX_KEPT 16
_Static_assert(SHAPE_BYTES <= 256 && SHAPE_BYTES % VECTOR_BYTES == 0, "kept_at holds places in one byte each");

struct shape {
  uint64_t key;
  bytes line;
  int64_t n_bytes, k, last_k; /* its number, and that of the last line like it */
  int64_t n_kept;             /* digits that may be of a literal; below 0 while they were not looked for */
  uint8_t kept_at[MAX_KEPT];
  uint8_t text[SHAPE_BYTES];  /* of the line, NUL for each digit and behind its end */
};

#ifdef __SSE2__
static const uint8_t ONES_THEN_ZEROS[2 * VECTOR_BYTES] = {255, 255, 255, 255, 255, 255, 255, 255,
                                                          255, 255, 255, 255, 255, 255, 255, 255};

static inline __m128i without_digits(bytes at) {
  __m128i codes = _mm_loadu_si128((const __m128i *)at), above = _mm_sub_epi8(codes, _mm_set1_epi8('0'));
  return _mm_andnot_si128(_mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8(9)), above), codes);
}

/* Write the shape of a line of n bytes; return its key. A vector can be read wherever the line has a byte. */
static inline uint64_t write_shape(bytes line, int64_t n, uint8_t *text) {
  __m128i mixed = _mm_setzero_si128();
  for (int64_t at = 0; at <= n; at += VECTOR_BYTES) {
    int64_t n_behind = at + VECTOR_BYTES <= n ? 0 : at + VECTOR_BYTES - n;
    __m128i is_mine = _mm_loadu_si128((const __m128i *)(ONES_THEN_ZEROS + n_behind));
    __m128i codes = _mm_and_si128(without_digits(line + at), is_mine);
    _mm_store_si128((__m128i *)(text + at), codes);
    mixed = _mm_add_epi32(_mm_shuffle_epi32(mixed, 0x39), codes);
  }
  uint64_t first = (uint64_t)_mm_cvtsi128_si64(mixed);
  return mix(mix((uint64_t)n, first), (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(mixed, mixed)));
}

static inline int is_same_text(const uint8_t *one, const uint8_t *other, int64_t n) {
  __m128i is_same = _mm_set1_epi8(-1);
  for (int64_t at = 0; at < n; at += VECTOR_BYTES)
    is_same = _mm_and_si128(is_same, _mm_cmpeq_epi8(_mm_load_si128((const __m128i *)(one + at)),
                                                    _mm_loadu_si128((const __m128i *)(other + at))));
  return _mm_movemask_epi8(is_same) == 0xFFFF;
}
#endif

/* Find the digits of a shape that may be of a literal. */
static void find_kept(struct shape *shape, const struct search *search) {
  shape->n_kept = 0;
  for (int64_t j = 0; j < search->n_numbered; j++) {
    bytes literal = search->pool + search->numbered[2 * j], at = shape->text, end = shape->text + shape->n_bytes;
    int64_t n = search->numbered[2 * j + 1];
    for (; end - at >= n; at++) {
      if (memcmp(at, literal, n)) continue;
      for (int64_t i = 0; i < n; i++)
        if (!literal[i] && shape->n_kept++ < MAX_KEPT) shape->kept_at[shape->n_kept - 1] = (uint8_t)(at - shape->text + i);
    }
  }
}

/* Whether a line has the same digits as that of its shape wherever they may be of a literal. */
static inline int has_kept(bytes line, struct shape *shape, const struct search *search) {
  if (shape->n_kept < 0) find_kept(shape, search);
  if (shape->n_kept > MAX_KEPT) return 0;
  for (int64_t j = 0; j < shape->n_kept; j++)
    if (line[shape->kept_at[j]] != shape->line[shape->kept_at[j]]) return 0;
  return 1;
}

/* The earlier line that has the marks of line k, which has n bytes; -1 if none is known. It is kept then. */
static inline int64_t find_alike(bytes line, int64_t n, int64_t k, bytes end, const struct search *search,
                                 struct shape *shapes) {
#ifdef __SSE2__
  if (n < MIN_SHAPE_BYTES || n >= SHAPE_BYTES || end - line < SHAPE_BYTES) return -1;
  _Alignas(VECTOR_BYTES) uint8_t text[SHAPE_BYTES];
  uint64_t key = write_shape(line, n, text);
  struct shape *pair = &shapes[key % N_SHAPES & ~1ull];
  struct shape *shape = &pair[pair[1].key == key];
  if (shape->key == key && shape->n_bytes == n && is_same_text(text, shape->text, n) && has_kept(line, shape, search)) {
    shape->last_k = k;
    return shape->k;
  }
  shape = &pair[pair[1].last_k < pair[0].last_k];
  shape->key = key, shape->line = line, shape->n_bytes = n, shape->k = shape->last_k = k, shape->n_kept = -1;
  memcpy(shape->text, text, SHAPE_BYTES);
#endif
  return -1;
}

/* ---- marks of lines ------------------------------------------------------------------------------------------- */

#define MAX_TOGETHER 256 /* lines; their bytes stay in a core's first cache until they are marked */
#define MAX_FOUND 2048
#define AHEAD_BYTES 640 /* what is asked for of the text before it is looked at */

struct marking {
  bytes text, end;
  const int64_t *offsets;
  const struct search *search;
  uint8_t *marks;
  struct shape shapes[N_SHAPES];
  int64_t n_found, first_line;
  bytes found[MAX_FOUND]; /* places where a window may stand, in their order, in first_line or later */
};

/* Mark lines with the literals that stand at the places found. */
static void mark_found(struct marking *m) {
  int64_t k = m->first_line;
  for (int64_t j = 0; j < m->n_found; j++) {
    bytes at = m->found[j];
    uint64_t word = load64_until(at, m->end);
    uint32_t hash = hash_of((uint32_t)word);
    for (int32_t e = m->search->starts[hash]; e < m->search->starts[hash + 1]; e++) {
      const struct entry *entry = &m->search->entries[e];
      if ((word & entry->mask) != entry->value) continue;
      while (m->text + m->offsets[k + 1] <= at) k++;
      bytes begin = at - entry->back, line_end = m->text + m->offsets[k + 1];
      if (begin < m->text + m->offsets[k] || line_end - begin < entry->n_bytes) continue;
      if (!memcmp(begin, m->search->pool + entry->at, entry->n_bytes)) m->marks[k] |= (uint8_t)entry->mark;
    }
  }
  m->n_found = 0;
  m->first_line = k;
}

/* Find the places of line k where a window may stand. */
static inline void find_places(struct marking *m, int64_t k) {
  bytes at = m->text + m->offsets[k], line_end = m->text + m->offsets[k + 1];
  int is_inside = m->end - line_end >= 4;
  while (at < line_end) {
    bytes stop = line_end - at < STEP * MAX_FOUND / 2 ? line_end : at + STEP * MAX_FOUND / 2;
    if (m->n_found > MAX_FOUND / 2) mark_found(m);
    int64_t n = m->n_found;
    for (; at < stop; at += STEP) {
      m->found[n] = at;
      n += m->search->is_known[hash_of(is_inside ? load32(at) : (uint32_t)load64_until(at, m->end))];
    }
    m->n_found = n;
  }
}

/* Mark the lines from k to `stop`, MAX_TOGETHER at most. */
static void mark_together(struct marking *m, int64_t k, int64_t stop) {
  int64_t alike[MAX_TOGETHER][2], n_alike = 0;
  for (; k < stop; k++) {
    bytes line = m->text + m->offsets[k], line_end = m->text + m->offsets[k + 1];
    __builtin_prefetch(line_end + AHEAD_BYTES);
    int64_t other = find_alike(line, line_end - line, k, m->end, m->search, m->shapes);
    if (other >= 0) {
      alike[n_alike][0] = k;
      alike[n_alike++][1] = other;
      continue;
    }
    m->marks[k] = begin_mark(line, line_end, m->search);
    find_places(m, k);
  }
  mark_found(m);
  for (int64_t j = 0; j < n_alike; j++) m->marks[alike[j][0]] = m->marks[alike[j][1]];
}

/* Mark line k, text[offsets[k]] to text[offsets[k + 1]], with the marks of all literals it holds. */
void mark_lines(bytes text, const int64_t *offsets, int64_t n_lines, const struct search *search, uint8_t *marks) {
  struct marking m = {.text = text, .end = text + offsets[n_lines], .offsets = offsets, .search = search, .marks = marks};
  for (int64_t k = 0; k < n_lines; k += MAX_TOGETHER)
    mark_together(&m, k, n_lines - k < MAX_TOGETHER ? n_lines : k + MAX_TOGETHER);
}

/* Count the lines with each number for marks. */
void count_marks(bytes marks, int64_t n_lines, int64_t *counts) {
  uint32_t some[4][256] = {{0}}; /* neighbours are often the same: to count them in one place, each waits for the last */
  for (int64_t k = 0; k < n_lines; k++) some[k % 4][marks[k]]++;
  for (int mark = 0; mark < 256; mark++)
    counts[mark] = (int64_t)some[0][mark] + some[1][mark] + some[2][mark] + some[3][mark];
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
