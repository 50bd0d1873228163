/* Parts of the C header of a plan.
 * Each text follows a line with its name. ${...} is a hole that report/formats/to_header.py fills. */
//// language
#ifndef ${P}_H
#define ${P}_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#  if __cplusplus < 201103L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 201103L)
#    error "this header needs C++11 or C99"
#  endif
#  define ${P}_ASSERT(condition, name) static_assert(condition, #name)
#elif !defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L
#  error "this header needs C99 or C++11"
#elif __STDC_VERSION__ >= 201112L
#  define ${P}_ASSERT(condition, name) _Static_assert(condition, #name)
#else  /* C99: an array of negative size does not compile */
#  define ${P}_ASSERT(condition, name) typedef char name[(condition) ? 1 : -1]
#endif
//// at_sizes

/* The tensor with an index, at any sizes of the dimensions. Others than those below are the same at all sizes. */
static inline struct ${p}_tensor ${p}_tensor_at(uint32_t ${p}_i${head}) {
    struct ${p}_tensor ${p}_t = ${p}_tensors[${p}_i];
    int ${p}_axis, ${p}_is_plain = 1;
    ${unused}
    switch (${p}_i) {
${cases}    default:
        ${p}_is_plain = 0;
    }
    for (${p}_axis = ${p}_t.rank - 1; ${p}_is_plain && ${p}_axis >= 0; --${p}_axis)
        ${p}_t.strides[${p}_axis] = ${p}_axis == ${p}_t.rank - 1 ? 1u : ${p}_t.shape[${p}_axis + 1] * ${p}_t.strides[${p}_axis + 1];
    return ${p}_t;
}
//// tensor

#define ${P}_MAX_RANK ${rank}u
struct ${p}_tensor {
    const char *name;
    size_t offset;         /* bytes from the start of its block */
    size_t size;           /* bytes; 0 where they are not known */
    uint${width}_t first, last;  /* steps of its life, both inclusive */
    uint32_t arena;        /* the number of its block: an arena, ${P}_CONSTANTS or ${P}_OUTSIDE */
    int32_t alias;         /* the index of the tensor that owns the bytes; -1: it owns them itself */
    enum ${p}_type type;
    enum ${p}_kind kind;
    int rank;              /* -1: without a shape, as a workspace */
    uint${wide}_t shape[${P}_MAX_RANK];
    uint${wide}_t strides[${P}_MAX_RANK];  /* elements from one index of an axis to the next */
};
/* Tensors of arenas by the first step of their lives, then constants and tensors outside. */
//// attribute

enum ${p}_attribute_kind { ${P}_INTS, ${P}_FLOATS, ${P}_TEXTS };
struct ${p}_attribute {
    const char *name;
    enum ${p}_attribute_kind kind;
    uint32_t first, count;  /* in ${p}_ints, ${p}_floats or ${p}_texts */
};
//// links
#define ${P}_ABSENT -1  /* an operand or result that is left out */
/* Operands and results of all nodes, by the index of the tensor. */
//// node
struct ${p}_node {
    const char *name, *domain, *op_type;  /* the domain is empty for ONNX's own operators */
    uint32_t step;
    uint32_t first_operand, operand_count, first_result, result_count;  /* in ${p}_links */
    uint32_t first_attribute, attribute_count;  /* in ${p}_attributes */
};
#define ${P}_NODE_COUNT ${count}u
/* Nodes in the order in which they run. */
//// state
struct ${p}_state {
    uint32_t input, output;  /* indices of the tensors before and after a run */
    size_t size;             /* bytes from the address of the input on, which keep their content between runs */
    size_t copied;           /* bytes to copy from the output to the input after a run; 0: both have one address */
    size_t rows, pitch;      /* rows before the axis that grows, and bytes from one to the next at every length */
};
#define ${P}_STATE_COUNT ${count}u
//// copy
#define ${P}_NEVER UINT32_MAX  /* no step */
/* Copies are made in this order, one at a time, and may run beside the nodes. */
struct ${p}_copy {
    uint32_t source, result;  /* indices of tensors */
    size_t size;              /* bytes */
    uint32_t step;            /* of its node */
    uint32_t target_free;     /* from this step on it may write: nodes of earlier steps use what was there */
    uint32_t source_ready;    /* from this step on it may read: nodes of earlier steps make its source */
    uint32_t before;          /* the node of this step reads the result first, and waits; ${P}_NEVER: only copies do */
    uint32_t source_until;    /* the node after this step writes over the source, and waits; ${P}_NEVER: none */
};
#define ${P}_COPY_COUNT ${count}u
