/* Programs that run a program, or single kernels, to prove it.
 * Each text follows a line with its name. ${...} is a hole that firmware/prove.py or firmware/build.py fills. */
//// main
/* Runs a model on the inputs in input.bin, one set after the other, and writes the outputs to output.bin. */
#include "${title}.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZONE 256u
static unsigned char zones_intact(const unsigned char *start, size_t size, size_t most) {
    for (size_t i = 0; i < ZONE + (most - size); ++i)
        if (start[i % ZONE] != 0xC3u || start[ZONE + size + i] != 0xC3u) return 0;
    return 1;
}
#define ALIGNED(name, size) static ${P}_ALIGNED unsigned char name[(size) + 2u * ZONE]
${memory}
static FILE *in, *out;
static int read_all(void *at, size_t size) { return fread(at, 1, size, in) == size; }
static int read_number(uint32_t *number) { return read_all(number, sizeof *number); }
${check}
${weights}

int main(void) {
    in = fopen("input.bin", "rb");
    out = fopen("output.bin", "wb");
    if (!in || !out) return 2;
${fill}
${open}
    for (int run = 0; run < ${runs}; ++run) {
${body}
    }
    fclose(in);
    return fclose(out) ? 2 : 0;
}
//// check

static FILE *expected, *got;
/* Writes a result to got.bin, and takes that in expected.bin in its place; does nothing where there is no such file. */
void ${p}_check(uint8_t *at, size_t size);
void ${p}_check(uint8_t *at, size_t size) {
    if (got && (fwrite(at, 1, size, got) != size || fread(at, 1, size, expected) != size)) exit(2);
}
//// open
    expected = fopen("expected.bin", "rb");
    if (expected && !(got = fopen("got.bin", "wb"))) return 2;
//// weights: Gives a program its weights: those of a target are in flash, as they are on a device.
#ifdef WEIGHTS_IN_FLASH
extern const uint8_t weights_in_flash[];
__asm__(".section .rodata\n.balign 16\n.global weights_in_flash\nweights_in_flash:\n.incbin \"" WEIGHTS_IN_FLASH "\"\n.text\n");
static int give_weights(void) {
    ${p}_weights = weights_in_flash;
    return 1;
}
#else
static int give_weights(void) {
    FILE *file = fopen("${title}.weights.bin", "rb");
    uint8_t *bytes = (uint8_t *)malloc(${P}_WEIGHTS_SIZE);
    if (!file || !bytes || fread(bytes, 1, ${P}_WEIGHTS_SIZE, file) != ${P}_WEIGHTS_SIZE) return 0;
    ${p}_weights = bytes;
    return fclose(file) == 0;
}
#endif
//// kernels_main

#include <stdio.h>
static _Alignas(64) uint8_t memory[{memory}];
int main(void) {{
    FILE *in = fopen("input.bin", "rb"), *out = fopen("output.bin", "wb");
    if (!in || !out) return 2;
{runs}
    fclose(in);
    return fclose(out) ? 2 : 0;
}}
