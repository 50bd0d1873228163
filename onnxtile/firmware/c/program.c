/* Parts of a program: its header, the walk over its calls, and its copies between memories.
 * Each text follows a line with its name. ${...} is a hole that a module of firmware/ fills. */
//// row
int64_t turn;
    memcpy(&turn, x[2], sizeof turn);
    const idx_t at = p[3] ? p[1] - 1 - (idx_t)turn : (idx_t)turn;
    for (idx_t i = 0; i < p[0]; ++i) {
        uint8_t *const row = x[0] + i * p[2], *const in_whole = x[1] + (i * p[1] + at) * p[2];
        memmove(p[4] ? in_whole : row, p[4] ? row : in_whole, (size_t)p[2]);
    }
//// head
/* A model in C, in the memory that onnxtile planned. Kernels by emx-onnx-cgen and onnxtile. Generated: do not edit. */
#include "${title}.h"

#include <string.h>
//// run

static uint32_t ${p}_number(const uint8_t **at) {
    uint32_t value = 0, shift = 0;
    for (;; shift += 7) {
        const uint8_t byte = *(*at)++;
        value |= (uint32_t)(byte & 127u) << shift;
        if (byte < 128u) return value;
    }
}

static const uint8_t *${p}_call(const uint8_t *at, uint8_t *const *bases, uint32_t turn, uint32_t turns) {
    const uint8_t *kernel = ${p}_kernels + ${p}_starts[${p}_number(&at)];
    const uint32_t function = ${p}_number(&kernel), operands = ${p}_number(&kernel), numbers = ${p}_number(&kernel);
    uint8_t *x[${operands}];
    idx_t p[${numbers}];
    for (uint32_t i = 0; i < numbers; ++i) {
        const uint32_t number = ${p}_number(&kernel);
        p[i] = ${number};
    }
    for (uint32_t i = 0; i < operands; ++i) {
        uint32_t code = ${p}_number(&at), advance = 0;
        if (turns > 1u) {
            if (code & 1u) {
                advance = ${p}_number(&at);
                advance = advance & 1u ? 0u - (advance >> 1) - 1u : advance >> 1; /* modulo 2^32, as is the sum */
            }
            code >>= 1;
        }
        x[i] = bases[code % ${spaces}u] + (uint32_t)(code / ${spaces}u + advance * turn) * (size_t)${p}_units[code % ${spaces}u];
    }
    ${p}_functions[function](p, x);
    return at;
}

${repeat}static void ${p}_walk(const uint8_t *at, uint8_t *const *bases) {
    for (uint32_t code; (code = ${p}_number(&at)) != 0u;) {
${repeats}        if (code & 1u) { /* 1 skips where a condition is not met, 3 always */
            const uint32_t condition = code == 1u ? ${p}_number(&at) : 0u, length = ${p}_number(&at);
            const size_t offset = condition / ${spaces}u * (size_t)${p}_units[condition % ${spaces}u];
            if (code == 3u || !bases[condition % ${spaces}u][offset]) at += length;
            continue;
        }
        const uint32_t turns = code >> 1, calls = ${p}_number(&at);
        const uint8_t *start = at;
        for (uint32_t turn = 0; turn < turns; ++turn) {
            at = start;
            for (uint32_t i = 0; i < calls; ++i) at = ${p}_call(at, bases, turn, turns);
        }
    }
}
//// repeat

static void ${p}_walk(const uint8_t *at, uint8_t *const *bases);

static uint8_t *${p}_place(const uint8_t **at, uint8_t *const *bases) {
    const uint32_t code = ${p}_number(at) - 1u;
    if (code == UINT32_MAX) return NULL;
    return bases[code % ${spaces}u] + code / ${spaces}u * (size_t)${p}_units[code % ${spaces}u];
}

static const uint8_t *${p}_repeat(const uint8_t *at, uint8_t *const *bases) {
    const uint8_t *const most = ${p}_place(&at, bases), *const goes_on = ${p}_place(&at, bases);
    uint8_t *const number = ${p}_place(&at, bases);
    const uint32_t length = ${p}_number(&at);
    int64_t limit = INT64_MAX;
    if (most) memcpy(&limit, most, sizeof limit);
    for (int64_t turn = 0; turn < limit && *goes_on; ++turn) {
        if (number) memcpy(number, &turn, sizeof turn);
        ${p}_walk(at, bases);
    }
    return at + length;
}

//// repeats
        if (code == 5u) {
            at = ${p}_repeat(at, bases);
            continue;
        }
//// declared
/* Copies between the memories. Define both functions to make them by a driver, such as that of a DMA: these here are weak.
 * Copies are made in the order of their starts. Where a compiler has no weak functions, define ${P}_OWN_COPY. */
void ${p}_copy(uint32_t id, void *target, const void *source, size_t size); /* starts a copy */
void ${p}_wait(uint32_t id); /* returns when the copy has ended */
//// defined
#if defined(__GNUC__)
#define ${P}_WEAK __attribute__((weak))
#else
#define ${P}_WEAK
#endif
#ifndef ${P}_OWN_COPY
${P}_WEAK void ${p}_copy(uint32_t id, void *target, const void *source, size_t size) {
    (void)id;
    memcpy(target, source, size);
}
${P}_WEAK void ${p}_wait(uint32_t id) { (void)id; }
#endif
//// driver
#include "${title}.h"

#include <string.h>

/* Of three runs the first makes each copy when it starts, the second when it has to have ended, the third every second one so. */
static struct {
    uint32_t id;
    void *target;
    const void *source;
    size_t size;
} started[${count}];
static uint32_t made, count, run;

static void make(uint32_t end) {
    for (; made < end; ++made) memcpy(started[made].target, started[made].source, started[made].size);
}

void ${p}_copy(uint32_t id, void *target, const void *source, size_t size) {
    if (count && id <= started[count - 1u].id) {
        made = count = 0;
        ++run;
    }
    started[count].id = id;
    started[count].target = target;
    started[count].source = source;
    started[count++].size = size;
    if (run % 3u == 0u || (run % 3u == 2u && id % 2u == 0u)) make(count);
}

void ${p}_wait(uint32_t id) {
    uint32_t end = made;
    while (end < count && started[end].id <= id) ++end;
    make(end);
}
//// header
/* ${title}: a model in C, in the memory that onnxtile planned. Generated: do not edit. */
#ifndef ${P}_H
#define ${P}_H

#include <stddef.h>
#include <stdint.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#if defined(__GNUC__)
#define ${P}_ALIGNED __attribute__((aligned(${alignment})))
#elif defined(_MSC_VER)
#define ${P}_ALIGNED __declspec(align(${alignment}))
#else
#define ${P}_ALIGNED
#endif
#ifndef ${P}_WEIGHTS_SECTION
#define ${P}_WEIGHTS_SECTION /* such as __attribute__((section(".rodata.weights"))) */
#endif
