/* op_shared.h — what the files op_*.c share: axes and lines of strided tensors, promotion of types, products.
 *
 * A line of a tensor along an axis is the row of elements that one gets by moving along that axis alone; lines are numbered in row-major order
 * of the other indices.
 */
#ifndef ACL_EMU_OP_SHARED_H
#define ACL_EMU_OP_SHARED_H

#include "emu.h"

#define OP_FLOATS  EMU_FLOAT, EMU_FLOAT16, EMU_BF16
#define OP_INTS    EMU_INT8, EMU_UINT8, EMU_INT16, EMU_INT32, EMU_INT64
#define OP_NUMBERS OP_FLOATS, OP_INTS, EMU_BOOL

/* ---- phase 1 ---------------------------------------------------------------------------------------------------------------- */

/* dim from -n_dims to n_dims - 1 as an axis; 161002 when it is none. A tensor without dimensions has the axes -1 and 0. */
int op_axis(struct emu_plan *p, int slot, int64_t dim);
/* The same type, the same shape as another tensor: 161002. */
bool op_same_type(struct emu_plan *p, int slot, int as);
bool op_same_shape(struct emu_plan *p, int slot, int as);
bool op_rank(struct emu_plan *p, int slot, int least, int most);
/* The type that two operands are computed in: the wider of the higher kind; bf16 with fp16 gives FLOAT. */
int op_promote(int a, int b);
/* May a result of type `from` be stored in `to`: never from a higher kind to a lower (float, integer, bool). */
bool op_castable(int from, int to);
/* Bytes for copies of those tensors that are not contiguous, and `more`. */
uint64_t op_workspace(const struct emu_plan *p, uint64_t more);

/* ---- run -------------------------------------------------------------------------------------------------------------------- */

int64_t op_line_count(const struct emu_tensor *t, int axis);
int64_t op_line_length(const struct emu_tensor *t, int axis);
int64_t op_line_stride(const struct emu_tensor *t, int axis);
int64_t op_line_start(const struct emu_tensor *t, int axis, int64_t line); /* elements from data */
/* The part of t at one index of an axis, without that axis. */
struct emu_tensor op_slice(const struct emu_tensor *t, int axis, int64_t index);
/* Elements as they are, between tensors of one type and shape. */
void op_copy(const struct emu_tensor *to, const struct emu_tensor *from);

/* What a matrix product sees of float32 operands: HF32 (11 bits of mantissa) or halves. */
enum op_operand { OP_EXACT, OP_HF32, OP_HALF };
void op_operands(enum op_operand as, float *x, int64_t n);
/* Of a quantised w [k, n]: w stands for (w + offset) * scale, rounded to type. */
struct op_scales {
  const float *scale, *offset; /* [ceil(k / group), n]; offset may be NULL */
  int64_t group;               /* rows of w that share one */
  int type;
};
/* y [m, n] = x [m, k] times the view w [k, n], which may be FRACTAL_NZ; scales: NULL for floats. */
void op_multiply(struct emu_call *c, const float *x, int64_t m, const struct emu_tensor *w, enum op_operand as,
                 const struct op_scales *scales, float *y);

#endif
