/* See cmsis_nn.c. */
#include <stdint.h>

void cmsis_nn_conv(const int8_t *x, const float *x_scale, const int8_t *x_zero, const int8_t *weights, const float *scales,
                   const float *y_scale, const int8_t *y_zero, const int32_t *bias, int8_t *y, void *workspace,
                   int32_t scale_count, int32_t channels, int32_t rows, int32_t columns, int32_t filters,
                   int32_t kernel_rows, int32_t kernel_columns, int32_t out_rows, int32_t out_columns, int32_t stride_rows,
                   int32_t stride_columns, int32_t pad_rows, int32_t pad_columns);
