/* Kernels, and parts of them, that are written here: bodies of functions of loops.
 * Each text follows a line with its name. ${...} is a hole that firmware/templates.py fills. */
//// sum
    const float ratio_a = ${a_scale}[0] / ${c_scale}[0], ratio_b = ${b_scale}[0] / ${c_scale}[0];
    const float fixed = (float)${c_zero}[0] - fmaf(ratio_a, (float)${a_zero}[0], ratio_b * (float)${b_zero}[0]);
    for (idx_t i = 0; i < ${count}; ++i) {
        const float sum = nearbyintf(fmaf((float)${a}[i], ratio_a, fmaf((float)${b}[i], ratio_b, fixed)));
        ${c}[i] = (${type})(sum < ${low}.0f ? ${low}.0f : sum > ${high}.0f ? ${high}.0f : sum);
    }
//// dot
static float KERNEL_dot(const float *a, const float *b, idx_t count, float sum) {
    for (idx_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
}
static float KERNEL_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
//// gru
    for (idx_t d = 0; d < ${directions}; ++d) {
        const bool is_backwards = ${backwards};
        const float *const w = ${w} + d * ${gates} * ${inputs};
        const float *const r = ${r} + d * ${gates} * ${units};
        for (idx_t batch = 0; batch < ${batches}; ++batch) {
            float update[${units}], reset[${units}]${more};
            float *const state = ${state};
            for (idx_t i = 0; i < ${units}; ++i) state[i] = ${first};
            for (idx_t step = 0; step < ${steps}; ++step) {
                const idx_t at = is_backwards ? ${steps} - 1 - step : step;
                const float *const x = ${x} + (at * ${batches} + batch) * ${inputs};
                for (idx_t i = 0; i < ${units}; ++i) {
                    const idx_t j = i + ${units};
                    float z = 0.0f, q = 0.0f;
                    for (idx_t k = 0; k < ${inputs}; ++k) {
                        z += x[k] * w[i * ${inputs} + k];
                        q += x[k] * w[j * ${inputs} + k];
                    }
                    for (idx_t k = 0; k < ${units}; ++k) {
                        z += state[k] * r[i * ${units} + k];
                        q += state[k] * r[j * ${units} + k];
                    }
                    update[i] = KERNEL_sigmoid(z${bias_z});
                    reset[i] = KERNEL_sigmoid(q${bias_q});
                }
${candidate}
                for (idx_t i = 0; i < ${units}; ++i) state[i] = (1.0f - update[i]) * tanhf(${next}[i]) + update[i] * state[i];
${row}
            }
        }
    }
//// reset_after
                for (idx_t i = 0; i < ${units}; ++i) {
                    const idx_t j = i + 2 * ${units};
                    const float recurrent = KERNEL_dot(state, r + j * ${units}, ${units}, 0.0f)${bias_r};
                    reset[i] = KERNEL_dot(x, w + j * ${inputs}, ${inputs}, 0.0f) + reset[i] * recurrent${bias_h};
                }
//// reset_before
                for (idx_t i = 0; i < ${units}; ++i) reset[i] *= state[i];
                for (idx_t i = 0; i < ${units}; ++i) {
                    const idx_t j = i + 2 * ${units};
                    const float seen = KERNEL_dot(x, w + j * ${inputs}, ${inputs}, 0.0f);
                    next[i] = KERNEL_dot(reset, r + j * ${units}, ${units}, seen)${bias_h}${bias_r};
                }
//// lstm
    for (idx_t d = 0; d < ${directions}; ++d) {
        const bool is_backwards = ${backwards};
        const float *const w = ${w} + d * ${gates} * ${inputs};
        const float *const r = ${r} + d * ${gates} * ${units};
        for (idx_t batch = 0; batch < ${batches}; ++batch) {
            float gate[${gates}], state[${units}], cell[${units}];
            for (idx_t i = 0; i < ${units}; ++i) {
                state[i] = ${state};
                cell[i] = ${cell};
            }
            for (idx_t step = 0; step < ${steps}; ++step) {
                const idx_t at = is_backwards ? ${steps} - 1 - step : step;
                const float *const x = ${x} + (at * ${batches} + batch) * ${inputs};
                for (idx_t i = 0; i < ${gates}; ++i) {
                    const float seen = KERNEL_dot(x, w + i * ${inputs}, ${inputs}, ${bias});
                    gate[i] = KERNEL_dot(state, r + i * ${units}, ${units}, seen);
                }
                for (idx_t i = 0; i < ${units}; ++i) {
                    const float *const g = gate + i;
                    cell[i] = KERNEL_sigmoid(g[2 * ${units}]) * cell[i] + KERNEL_sigmoid(g[0]) * tanhf(g[3 * ${units}]);
                    state[i] = KERNEL_sigmoid(g[${units}]) * tanhf(cell[i]);
                }
${row}
            }
${last_state}
${last_cell}
        }
    }
//// convolution
    for (idx_t o = 0; o < ${channels}; ++o) {
        const ${x_type} *const image = ${x} + o / ${channels_of_group} * ${depth} * ${area};
        const ${w_type} *const filter = ${w} + o * ${depth} * ${kernel};
${before}
        for (idx_t i = 0; i < ${result_rows}; ++i) {
            const idx_t top = i * ${row_stride} - ${rows_before};
            const idx_t row = top < 0 ? -top : 0, row_end = ${rows} - top < ${kernel_rows} ? ${rows} - top : ${kernel_rows};
            for (idx_t j = 0; j < ${result_columns}; ++j) {
                const idx_t left = j * ${column_stride} - ${columns_before};
                const idx_t column = left < 0 ? -left : 0;
                const idx_t column_end = ${columns} - left < ${kernel_columns} ? ${columns} - left : ${kernel_columns};
                ${sum_type} sum = ${first};
${loops}
                ${y}[(o * ${result_rows} + i) * ${result_columns} + j] = ${stored};
            }
        }
    }
//// pointwise
    for (idx_t o = 0; o < ${channels}; ++o) {
        const ${x_type} *const image = ${x} + o / ${channels_of_group} * ${depth} * ${area};
        const ${w_type} *const filter = ${w} + o * ${depth};
${before}
        for (idx_t i = 0; i < ${result_rows}; ++i) {
            for (idx_t j = 0; j < ${result_columns}; ++j) {
                const ${x_type} *a = image + i * ${row_stride} * ${columns} + j * ${column_stride};
                ${sum_type} sum = ${first};
                for (idx_t c = 0; c < ${depth}; ++c, a += ${area}) sum += ${product};
                ${y}[(o * ${result_rows} + i) * ${result_columns} + j] = ${stored};
            }
        }
    }
//// over_channels
                for (idx_t k = row; k < row_end; ++k) {
                    for (idx_t l = column; l < column_end; ++l) {
                        const ${x_type} *a = image + (top + k) * ${columns} + left + l;
                        const ${w_type} *b = filter + k * ${kernel_columns} + l;
                        for (idx_t c = 0; c < ${depth}; ++c, a += ${area}, b += ${kernel}) sum += ${product};
                    }
                }
//// over_columns
                for (idx_t c = 0; c < ${depth}; ++c) {
                    for (idx_t k = row; k < row_end; ++k) {
                        const ${x_type} *const a = image + c * ${area} + (top + k) * ${columns} + left;
                        const ${w_type} *const b = filter + c * ${kernel} + k * ${kernel_columns};
                        for (idx_t l = column; l < column_end; ++l) sum += ${product};
                    }
                }
//// rounded
        const int32_t x_zero = ${x_zero}[0], w_zero = ${w_zero}[${w_zero_at}];
        const float scale = ${x_scale}[0] * ${w_scale}[${w_scale_at}] / ${y_scale}[0], zero = (float)${y_zero}[0];
//// clamped
static ${type} KERNEL_rounded(float value, float zero) {
    const float nearest = nearbyintf(value) + zero;
    return (${type})(nearest < ${low} ? ${low} : nearest > ${high} ? ${high} : nearest);
}
//// number
static int32_t KERNEL_number(const uint8_t *q, idx_t i) {
    const int32_t number = q[i / 2] >> i % 2 * 4 & 15;
    return ${number};
}
//// product
    for (idx_t j = 0; j < ${columns}; ++j) {
        for (idx_t i = 0; i < ${rows}; ++i) ${y}[i * ${columns} + j] = ${first};
        for (idx_t k = 0; k < ${depth}; ++k) {
            const float weight = ${weight};
            for (idx_t i = 0; i < ${rows}; ++i) ${y}[i * ${columns} + j] += ${x}[${x_at}] * weight;
        }
    }
//// half_product: The product of floats of 16 bits: a sum of these would be rounded at each step, so each weight is unpacked once for each row.
    for (idx_t i = 0; i < ${rows}; ++i) {
        for (idx_t j = 0; j < ${columns}; ++j) {
            float sum = ${first};
            for (idx_t k = 0; k < ${depth}; ++k) sum += (float)${x}[${x_at}] * ${weight};
            ${y}[i * ${columns} + j] = (_Float16)sum;
        }
    }
//// unpacking_convolution
    for (idx_t n = 0; n < ${batches}; ++n) {
        for (idx_t o = 0; o < ${channels}; ++o) {
            float *const result = ${y} + (n * ${channels} + o) * ${result_size};
            for (idx_t i = 0; i < ${result_size}; ++i) result[i] = ${first};
            for (idx_t c = 0; c < ${depth}; ++c) {
                const float *const image = ${x} + (n * ${image_channels} + o / ${channels_of_group} * ${depth} + c) * ${size};
                for (idx_t m = 0; m < ${kernel_0}; ++m) {
                    for (idx_t k = 0; k < ${kernel_1}; ++k) {
                        for (idx_t l = 0; l < ${kernel_2}; ++l) {
                            const float weight = ${weight};
${along_row}
                            for (idx_t h = 0; h < ${result_0}; ++h) {
                                const idx_t plane = h * ${stride_0} + m * ${dilation_0} - ${before_0};
                                if (plane < 0 || plane >= ${size_0}) continue;
                                for (idx_t i = 0; i < ${result_1}; ++i) {
                                    const idx_t row = i * ${stride_1} + k * ${dilation_1} - ${before_1};
                                    if (row < 0 || row >= ${size_1}) continue;
                                    float *const to = result + (h * ${result_1} + i) * ${result_2};
                                    const float *const from = image + (plane * ${size_1} + row) * ${size_2} + left;
                                    for (idx_t j = start; j < end; ++j) to[j] += from[j * ${stride_2}] * weight;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
//// half_convolution: The convolution of floats of 16 bits: the sums of a row are floats, so each weight is unpacked once for each row.
    for (idx_t n = 0; n < ${batches}; ++n) {
        for (idx_t o = 0; o < ${channels}; ++o) {
            for (idx_t h = 0; h < ${result_0}; ++h) {
                for (idx_t i = 0; i < ${result_1}; ++i) {
                    float sums[${result_2}];
                    for (idx_t j = 0; j < ${result_2}; ++j) sums[j] = ${first};
                    for (idx_t c = 0; c < ${depth}; ++c) {
                        const _Float16 *const image = ${x} + (n * ${image_channels} + o / ${channels_of_group} * ${depth} + c) * ${size};
                        for (idx_t m = 0; m < ${kernel_0}; ++m) {
                            const idx_t plane = h * ${stride_0} + m * ${dilation_0} - ${before_0};
                            if (plane < 0 || plane >= ${size_0}) continue;
                            for (idx_t k = 0; k < ${kernel_1}; ++k) {
                                const idx_t row = i * ${stride_1} + k * ${dilation_1} - ${before_1};
                                if (row < 0 || row >= ${size_1}) continue;
                                for (idx_t l = 0; l < ${kernel_2}; ++l) {
                                    const float weight = ${weight};
${along_row}
                                    const _Float16 *const from = image + (plane * ${size_1} + row) * ${size_2} + left;
                                    for (idx_t j = start; j < end; ++j) sums[j] += (float)from[j * ${stride_2}] * weight;
                                }
                            }
                        }
                    }
                    _Float16 *const to = ${y} + (((n * ${channels} + o) * ${result_0} + h) * ${result_1} + i) * ${result_2};
                    for (idx_t j = 0; j < ${result_2}; ++j) to[j] = (_Float16)sums[j];
                }
            }
        }
    }
//// along_row
const idx_t left = l * ${dilation_2} - ${before_2};
const idx_t start = left < 0 ? (${stride_2} - 1 - left) / ${stride_2} : 0;
const idx_t last = ${size_2} - left > 0 ? (${size_2} - left + ${stride_2} - 1) / ${stride_2} : 0;
const idx_t end = last < ${result_2} ? last : ${result_2};
//// gather
    for (idx_t a = 0; a < ${before}; ++a) {
        for (idx_t i = 0; i < ${count}; ++i) {
            const idx_t index = (idx_t)${indices}[i];
            const idx_t taken = index < 0 ? index + ${length} : index;
            for (idx_t b = 0; b < ${after}; ++b) ${y}[(a * ${count} + i) * ${after} + b] = ${weight};
        }
    }
