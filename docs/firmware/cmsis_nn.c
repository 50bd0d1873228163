/* QLinearConv in 8 bits by CMSIS-NN. ONNX has the channels of images first, and CMSIS-NN has them last: both images are turned in the
 * workspace. The weights are turned in flash, by the table. See cmsis_nn.toml. */
#include "cmsis_nn.h"

#include <math.h>
#include <stdlib.h>

#include "arm_nnfunctions.h"

/* Copies an image with `rows` of `columns` bytes to one with its axes exchanged. */
static void turn(const int8_t *from, int8_t *to, int32_t rows, int32_t columns) {
    for (int32_t row = 0; row < rows; ++row)
        for (int32_t column = 0; column < columns; ++column) to[column * rows + row] = from[row * columns + column];
}

void cmsis_nn_conv(const int8_t *x, const float *x_scale, const int8_t *x_zero, const int8_t *weights, const float *scales,
                   const float *y_scale, const int8_t *y_zero, const int32_t *bias, int8_t *y, void *workspace,
                   int32_t scale_count, int32_t channels, int32_t rows, int32_t columns, int32_t filters,
                   int32_t kernel_rows, int32_t kernel_columns, int32_t out_rows, int32_t out_columns, int32_t stride_rows,
                   int32_t stride_columns, int32_t pad_rows, int32_t pad_columns) {
    const cmsis_nn_dims in = {1, rows, columns, channels}, out = {1, out_rows, out_columns, filters};
    const cmsis_nn_dims filter = {filters, kernel_rows, kernel_columns, channels}, biases = {filters, 1, 1, 1};
    const cmsis_nn_conv_params how = {-*x_zero, *y_zero, {stride_columns, stride_rows}, {pad_columns, pad_rows}, {1, 1}, {-128, 127}};
    int32_t *multipliers = (int32_t *)workspace, *shifts = multipliers + filters;
    int8_t *buffer = (int8_t *)(shifts + filters);
    const int32_t size = 4 * ((channels * kernel_rows * kernel_columns + 3) / 4 * 4);
    int8_t *turned_x = buffer + size, *turned_y = turned_x + channels * rows * columns;
    if (arm_convolve_wrapper_s8_get_buffer_size(&how, &in, &filter, &out) > size) abort();
    for (int32_t i = 0; i < filters; ++i) {
        int exponent;
        const double factor = (double)*x_scale * (double)scales[scale_count > 1 ? i : 0] / (double)*y_scale;
        const int64_t fraction = llround(frexp(factor, &exponent) * 2147483648.0);
        multipliers[i] = fraction == 2147483648LL ? 1073741824 : (int32_t)fraction;
        shifts[i] = fraction == 2147483648LL ? exponent + 1 : exponent;
    }
    const cmsis_nn_context context = {buffer, size};
    const cmsis_nn_per_channel_quant_params steps = {multipliers, shifts};
    turn(x, turned_x, channels, rows * columns);
    if (arm_convolve_wrapper_s8(&context, &how, &steps, &in, turned_x, &filter, weights, &biases, bias, &out, turned_y)) abort();
    turn(turned_y, y, out_rows * out_columns, filters);
}
