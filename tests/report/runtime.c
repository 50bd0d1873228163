/* A runtime for the tables of a planned model: it walks the nodes in order and calls a kernel for each.
 *
 *   onnxtile plan model.onnx --emit net.h --emit net.bin --dry-run
 *   cc -std=c99 -O2 runtime.c -lm -o run && ./run net.bin input.bin output.bin
 *
 * net.bin has the constants. input.bin has the inputs one after the other; output.bin gets the outputs. The kernels in kernels.h are
 * for float tensors; -DKERNELS='"mine.h"' takes yours. */
#ifndef KERNELS
#define KERNELS "kernels.h"
#endif
#include "net.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct net_tensor Tensor;
typedef struct net_node Node;

static void *blocks[NET_ARENA_COUNT + 1u];  /* the arenas, then the block of constants */
static void *held[NET_VALUE_COUNT];         /* the memory of tensors without an address, by index */

static void *address(const Tensor *t) {
    return t->arena == NET_OUTSIDE ? held[t - net_tensors] : (char *)blocks[t->arena] + t->offset;
}

static const Tensor *linked(uint32_t link) { return net_links[link] == NET_ABSENT ? NULL : &net_tensors[net_links[link]]; }

#include KERNELS /* static int run(const Node *n): 0 where it worked */

static void *memory(size_t size) {
    char *start = malloc(size + NET_ALIGNMENT);
    if (!start) exit(2);
    memset(start, 0xA5, size + NET_ALIGNMENT); /* a kernel that reads what nobody wrote is seen in the outputs */
    return start + (NET_ALIGNMENT - (uintptr_t)start % NET_ALIGNMENT) % NET_ALIGNMENT;
}

/* Read or write the bytes of some tensors, one after the other, from or to the file `path`; return 0 where it worked. */
static int pass(const char *path, const uint32_t *tensors, uint32_t count, int writes) {
    FILE *file = fopen(path, writes ? "wb" : "rb");
    if (!file) return 1;
    for (uint32_t i = 0; i < count; ++i) {
        const Tensor *t = &net_tensors[tensors[i]];
        size_t done = writes ? fwrite(address(t), 1, t->size, file) : fread(address(t), 1, t->size, file);
        if (done != t->size) { fclose(file); return 1; }
    }
    return fclose(file);
}

static int constants(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return 1;
    size_t done = fread(blocks[NET_CONSTANTS], 1, NET_CONSTANTS_SIZE, file);
    fclose(file);
    return done != NET_CONSTANTS_SIZE;
}

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: %s net.bin input.bin output.bin\n", argv[0]); return 2; }
    for (uint32_t i = 0; i <= NET_CONSTANTS; ++i) blocks[i] = memory(net_block_sizes[i]);
    for (uint32_t i = 0; i < NET_VALUE_COUNT; ++i)
        if (net_tensors[i].arena == NET_OUTSIDE) held[i] = memory(net_tensors[i].size);
    if (constants(argv[1])) { fprintf(stderr, "cannot read the constants in %s\n", argv[1]); return 2; }
    if (pass(argv[2], net_inputs, NET_INPUT_COUNT, 0)) { fprintf(stderr, "cannot read the inputs in %s\n", argv[2]); return 2; }
    for (uint32_t i = 0; i < NET_NODE_COUNT; ++i)
        if (run(&net_nodes[i])) {
            fprintf(stderr, "node %s: no kernel for %s\n", net_nodes[i].name, net_nodes[i].op_type);
            return 1;
        }
    if (pass(argv[3], net_outputs, NET_OUTPUT_COUNT, 1)) { fprintf(stderr, "cannot write %s\n", argv[3]); return 2; }
    return 0;
}
