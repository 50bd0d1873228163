/* Kernels of the runtime beside this file: operators of ONNX on float tensors, in as few lines as possible.
 *
 * Your own kernels replace this file: a function `run` that runs one node, and returns 0 where it worked. A result may have the
 * address of an operand: the plan gives it only to operators that can work in place. */
#include <math.h>

static const Tensor *operand(const Node *n, uint32_t i) { return i < n->operand_count ? linked(n->first_operand + i) : NULL; }
static const Tensor *result(const Node *n, uint32_t i) { return linked(n->first_result + i); }

static const struct net_attribute *attribute(const Node *n, const char *name) {
    for (uint32_t i = 0; i < n->attribute_count; ++i)
        if (!strcmp(net_attributes[n->first_attribute + i].name, name)) return &net_attributes[n->first_attribute + i];
    return NULL;
}

static long number(const Node *n, const char *name, uint32_t i, long otherwise) {
    const struct net_attribute *a = attribute(n, name);
    return a && a->kind == NET_INTS && i < a->count ? (long)net_ints[a->first + i] : otherwise;
}

static size_t product(const Tensor *t, int from, int to) {
    size_t count = 1;
    while (from < to) count *= t->shape[from++];
    return count;
}
static size_t elements(const Tensor *t) { return product(t, 0, t->rank); }
static long size(const Tensor *t, int axis) { return axis < t->rank ? (long)t->shape[axis] : 1; }
static int axis_of(const Node *n, const Tensor *t, long otherwise) {
    long axis = number(n, "axis", 0, otherwise);
    return (int)(axis < 0 ? axis + t->rank : axis);
}

/* The place in `t` of element `i` of `of`, to whose shape `t` is broadcast, over the first `axes` axes of `of`. */
static size_t broadcast(const Tensor *t, const Tensor *of, size_t i, int axes) {
    size_t place = 0;
    for (int axis = axes - 1; axis >= 0; --axis) {
        int own = axis - (of->rank - t->rank);
        if (own >= 0 && t->shape[own] > 1) place += i % of->shape[axis] * t->strides[own];
        i /= of->shape[axis];
    }
    return place;
}

static int elementwise(const Node *n) {
    const Tensor *a = operand(n, 0), *b = operand(n, 1), *c = result(n, 0);
    float *x = address(a), *w = b ? address(b) : NULL, *y = address(c);
    const char *op = n->op_type;
    for (size_t i = 0; i < elements(c); ++i) {
        float u = x[broadcast(a, c, i, c->rank)], v = w ? w[broadcast(b, c, i, c->rank)] : 0;
        if (!strcmp(op, "Add")) y[i] = u + v;
        else if (!strcmp(op, "Sub")) y[i] = u - v;
        else if (!strcmp(op, "Mul")) y[i] = u * v;
        else if (!strcmp(op, "Div")) y[i] = u / v;
        else if (!strcmp(op, "Pow")) y[i] = powf(u, v);
        else if (!strcmp(op, "Sqrt")) y[i] = sqrtf(u);
        else if (!strcmp(op, "Erf")) y[i] = erff(u);
        else if (!strcmp(op, "Relu")) y[i] = u > 0 ? u : 0;
        else return 1;
    }
    return 0;
}

static int matmul(const Node *n) { /* also Gemm, without its scalars */
    const Tensor *a = operand(n, 0), *b = operand(n, 1), *c = result(n, 0), *bias = operand(n, 2);
    int gemm = bias != NULL;
    long ta = gemm && number(n, "transA", 0, 0), tb = gemm && number(n, "transB", 0, 0);
    if (c->rank < 2 || a->rank < 2) return 1;
    size_t rows = c->shape[c->rank - 2], columns = c->shape[c->rank - 1], inner = a->shape[a->rank - (ta ? 2 : 1)];
    for (size_t i = 0; i < elements(c); ++i) {
        size_t batch = i / columns / rows, row = i / columns % rows, column = i % columns;
        const float *x = (float *)address(a) + broadcast(a, c, batch, c->rank - 2);
        const float *w = (float *)address(b) + broadcast(b, c, batch, c->rank - 2);
        double sum = bias ? ((float *)address(bias))[broadcast(bias, c, i, c->rank)] : 0;
        for (size_t k = 0; k < inner; ++k)
            sum += (double)x[ta ? k * rows + row : row * inner + k] * w[tb ? column * inner + k : k * columns + column];
        ((float *)address(c))[i] = (float)sum;
    }
    return (gemm && (attribute(n, "alpha") || attribute(n, "beta")));
}

static int convolution(const Node *n) { /* of images, with pads as numbers */
    const Tensor *a = operand(n, 0), *b = operand(n, 1), *c = result(n, 0), *bias = operand(n, 2);
    const float *x = address(a), *w = address(b);
    if (c->rank != 4) return 1;
    long height = size(a, 2), width = size(a, 3), tall = size(c, 2), broad = size(c, 3), p = size(b, 2), q = size(b, 3);
    long group = number(n, "group", 0, 1), deep = size(b, 1), channels = size(c, 1), input = size(a, 1);
    for (size_t i = 0; i < elements(c); ++i) {
        long column = (long)i % broad, row = (long)i / broad % tall, channel = (long)i / broad / tall % channels;
        long image = (long)i / broad / tall / channels;
        double sum = bias ? ((float *)address(bias))[channel] : 0;
        for (long k = 0; k < deep * p * q; ++k) {
            long from = k / q / p + channel / (channels / group) * deep;
            long u = row * number(n, "strides", 0, 1) + k / q % p * number(n, "dilations", 0, 1) - number(n, "pads", 0, 0);
            long v = column * number(n, "strides", 1, 1) + k % q * number(n, "dilations", 1, 1) - number(n, "pads", 1, 0);
            if (u >= 0 && v >= 0 && u < height && v < width)
                sum += (double)x[((image * input + from) * height + u) * width + v] * w[channel * deep * p * q + k];
        }
        ((float *)address(c))[i] = (float)sum;
    }
    return 0;
}

static int softmax(const Node *n) { /* of the last axis; also ReduceMean */
    const Tensor *a = operand(n, 0);
    int mean = !strcmp(n->op_type, "ReduceMean");
    size_t width = a->shape[a->rank - 1];
    const float *x = address(a);
    float *y = address(result(n, 0));
    if (mean ? number(n, "axes", 0, 0) != -1 : axis_of(n, a, -1) != a->rank - 1) return 1;
    for (size_t row = 0; row < elements(a) / width; ++row, x += width) {
        double sum = 0, top = x[0];
        for (size_t i = 1; i < width; ++i) top = x[i] > top ? x[i] : top;
        for (size_t i = 0; i < width; ++i) sum += mean ? x[i] : exp(x[i] - top);
        if (mean) y[row] = (float)(sum / (double)width);
        else for (size_t i = 0; i < width; ++i) y[row * width + i] = (float)(exp(x[i] - top) / sum);
    }
    return 0;
}

static int transpose(const Node *n) {
    const Tensor *a = operand(n, 0), *c = result(n, 0);
    for (size_t i = 0; i < elements(c); ++i) {
        size_t from = 0;
        for (int axis = 0; axis < c->rank; ++axis)
            from += i / c->strides[axis] % c->shape[axis] * a->strides[number(n, "perm", (uint32_t)axis, c->rank - 1 - axis)];
        ((float *)address(c))[i] = ((float *)address(a))[from];
    }
    return 0;
}

/* Copy the rows of `part` from or to their place in `whole`, `start` bytes into each of its rows. In place, nothing moves. */
static size_t copy(const Tensor *whole, const Tensor *part, int axis, size_t start, int join) {
    size_t rows = product(whole, 0, axis), wide = rows ? whole->size / rows : 0, own = rows ? part->size / rows : 0;
    for (size_t row = 0; row < rows; ++row) {
        char *there = (char *)address(whole) + row * wide + start, *here = (char *)address(part) + row * own;
        if (there != here) memmove(join ? there : here, join ? here : there, own);
    }
    return start + own;
}

static int move(const Node *n) { /* Concat, Split, Gather of one index, Reshape and other views */
    const Tensor *a = operand(n, 0), *c = result(n, 0);
    size_t start = 0;
    if (!strcmp(n->op_type, "Concat"))
        for (uint32_t i = 0; i < n->operand_count; ++i) start = copy(c, operand(n, i), axis_of(n, c, 0), start, 1);
    else if (!strcmp(n->op_type, "Split"))
        for (uint32_t i = 0; i < n->result_count; ++i) start = copy(a, result(n, i), axis_of(n, a, 0), start, 0);
    else if (!strcmp(n->op_type, "Gather")) {
        int axis = axis_of(n, a, 0);
        long index = (long)*(int64_t *)address(operand(n, 1));
        if (operand(n, 1)->rank) return 1;
        copy(a, c, axis, (size_t)(index < 0 ? index + (long)a->shape[axis] : index) * a->strides[axis] * sizeof(float), 0);
    } else if (address(a) != address(c)) memmove(address(c), address(a), c->size);
    return 0;
}

static const struct { const char *op_type; int (*run)(const Node *); } kernels[] = {
    {"Add", elementwise}, {"Sub", elementwise}, {"Mul", elementwise}, {"Div", elementwise}, {"Pow", elementwise},
    {"Sqrt", elementwise}, {"Erf", elementwise}, {"Relu", elementwise}, {"MatMul", matmul}, {"Gemm", matmul},
    {"Conv", convolution}, {"Softmax", softmax}, {"ReduceMean", softmax}, {"Transpose", transpose}, {"Concat", move},
    {"Split", move}, {"Gather", move}, {"Reshape", move}, {"Flatten", move}, {"Identity", move},
};

static int run(const Node *n) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; ++i)
        if (!*n->domain && !strcmp(kernels[i].op_type, n->op_type)) return kernels[i].run(n);
    return 1;
}
