/* aclnn.h — the operators that are used, each as X(name, arguments): for the names of phase 1 (aclnnNAMEGetWorkspaceSize, with two more
 * arguments, the workspace's bytes and the executor) and phase 2 (aclnnNAME). acl.h includes it.
 *
 * Sources: the operators' documents of CANN 8.1 to 9.1; FusedInferAttentionScore V2 lacks three tensors of V3, that lacks two tensors and a
 * number of V4.
 */
#ifndef CYGNET_ACLNN_H
#define CYGNET_ACLNN_H

/* clang-format off */
#define ACLNN_OPERATORS(X)                                                                                                                 \
  X(Mm, const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType)                                                 \
  X(BatchMatMul, const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType)                                        \
  X(WeightQuantBatchMatmulV2, const aclTensor *x, const aclTensor *weight, const aclTensor *antiquantScale,                                \
    const aclTensor *antiquantOffsetOptional, const aclTensor *quantScaleOptional, const aclTensor *quantOffsetOptional,                   \
    const aclTensor *biasOptional, int antiquantGroupSize, const aclTensor *y)                                                             \
  X(Embedding, const aclTensor *weight, const aclTensor *indices, const aclTensor *out)                                                    \
  X(IndexSelect, const aclTensor *self, int64_t dim, const aclTensor *index, aclTensor *out)                                               \
  X(InplaceIndexCopy, aclTensor *selfRef, int64_t dim, const aclTensor *index, const aclTensor *source)                                    \
  X(ScatterPaKvCache, const aclTensor *key, aclTensor *keyCacheRef, const aclTensor *slotMapping, const aclTensor *value,                  \
    aclTensor *valueCacheRef, const aclTensor *compressLensOptional, const aclTensor *compressSeqOffsetOptional,                           \
    const aclTensor *seqLensOptional, char *cacheModeOptional, char *scatterModeOptional, const aclIntArray *stridesOptional,              \
    const aclIntArray *offsetsOptional)                                                                                                    \
  X(GatherPaKvCache, const aclTensor *keyCache, const aclTensor *valueCache, const aclTensor *blockTables, const aclTensor *seqLens,       \
    aclTensor *keyRef, aclTensor *valueRef, const aclTensor *seqOffsetOptional, char *cacheMode, bool isSeqLensCumsum)                     \
  X(RmsNorm, const aclTensor *x, const aclTensor *gamma, double epsilon, const aclTensor *yOut, const aclTensor *rstdOut)                  \
  X(AddRmsNorm, const aclTensor *x1, const aclTensor *x2, const aclTensor *gamma, double epsilon, aclTensor *yOut, aclTensor *rstdOut,     \
    aclTensor *xOut)                                                                                                                       \
  X(LayerNorm, const aclTensor *input, const aclIntArray *normalizedShape, const aclTensor *weightOptional,                                \
    const aclTensor *biasOptional, double eps, aclTensor *out, aclTensor *meanOutOptional, aclTensor *rstdOutOptional)                     \
  X(RotaryPositionEmbedding, const aclTensor *x, const aclTensor *cos, const aclTensor *sin, int64_t mode, aclTensor *out)                 \
  X(GeGluV3, const aclTensor *self, int64_t dim, int64_t approximate, bool activateLeft, aclTensor *out, aclTensor *outGelu)               \
  X(SwiGlu, const aclTensor *x, int64_t dim, const aclTensor *out)                                                                         \
  X(GeluV2, const aclTensor *x, int64_t approximate, aclTensor *y)                                                                         \
  X(Silu, const aclTensor *self, aclTensor *out)                                                                                           \
  X(Sigmoid, const aclTensor *self, aclTensor *out)                                                                                        \
  X(Relu, const aclTensor *self, aclTensor *out)                                                                                           \
  X(Tanh, const aclTensor *self, aclTensor *out)                                                                                           \
  X(InplaceTanh, aclTensor *selfRef)                                                                                                       \
  X(Softmax, const aclTensor *self, int64_t dim, aclTensor *out)                                                                           \
  X(Mul, const aclTensor *self, const aclTensor *other, aclTensor *out)                                                                    \
  X(InplaceMul, aclTensor *selfRef, const aclTensor *other)                                                                                \
  X(Muls, const aclTensor *self, const aclScalar *other, aclTensor *out)                                                                   \
  X(InplaceMuls, aclTensor *selfRef, const aclScalar *other)                                                                               \
  X(Add, const aclTensor *self, const aclTensor *other, const aclScalar *alpha, aclTensor *out)                                            \
  X(InplaceAdd, const aclTensor *selfRef, const aclTensor *other, const aclScalar *alpha)                                                  \
  X(Adds, const aclTensor *self, const aclScalar *other, const aclScalar *alpha, aclTensor *out)                                           \
  X(Clamp, const aclTensor *self, const aclScalar *min, const aclScalar *max, aclTensor *out)                                              \
  X(Cast, const aclTensor *self, aclDataType dtype, aclTensor *out)                                                                        \
  X(InplaceCopy, aclTensor *selfRef, const aclTensor *src)                                                                                 \
  X(LtScalar, const aclTensor *self, const aclScalar *other, aclTensor *out)                                                               \
  X(GtScalar, const aclTensor *self, const aclScalar *other, aclTensor *out)                                                               \
  X(SWhere, const aclTensor *condition, const aclTensor *self, const aclTensor *other, aclTensor *out)                                     \
  X(InplaceMaskedFillScalar, aclTensor *selfRef, const aclTensor *mask, const aclScalar *value)                                            \
  X(InplaceZero, aclTensor *selfRef)                                                                                                       \
  X(InplaceFillScalar, aclTensor *selfRef, const aclScalar *value)                                                                         \
  X(Cat, const aclTensorList *tensors, int64_t dim, aclTensor *out)                                                                        \
  X(ReduceSum, const aclTensor *self, const aclIntArray *dims, bool keepDims, aclDataType dtype, aclTensor *out)                           \
  X(ArgMax, const aclTensor *self, int64_t dim, bool keepdim, aclTensor *out)                                                              \
  X(Topk, const aclTensor *self, int64_t k, int64_t dim, bool largest, bool sorted, aclTensor *valuesOut, aclTensor *indicesOut)           \
  X(Cumsum, const aclTensor *self, int64_t dim, aclDataType dtype, aclTensor *out)                                                         \
  X(MoeGatingTopKSoftmaxV2, const aclTensor *x, const aclTensor *finishedOptional, int64_t k, int64_t renorm,                              \
    bool outputSoftmaxResultFlag, const aclTensor *yOut, const aclTensor *expertIdxOut, const aclTensor *softmaxResultOutOptional)         \
  X(MoeInitRoutingV2, const aclTensor *x, const aclTensor *expertIdx, int64_t activeNum, int64_t expertCapacity, int64_t expertNum,        \
    int64_t dropPadMode, int64_t expertTokensCountOrCumsumFlag, bool expertTokensBeforeCapacityFlag, const aclTensor *expandedXOut,        \
    const aclTensor *expandedRowIdxOut, const aclTensor *expertTokensCountOrCumsumOut, const aclTensor *expertTokensBeforeCapacityOut)     \
  X(MoeFinalizeRoutingV2, const aclTensor *expandedX, const aclTensor *expandedRowIdx, const aclTensor *x1Optional,                        \
    const aclTensor *x2Optional, const aclTensor *biasOptional, const aclTensor *scalesOptional, const aclTensor *expertIdxOptional,       \
    int64_t dropPadMode, const aclTensor *out)                                                                                             \
  X(GroupedMatmulV4, const aclTensorList *x, const aclTensorList *weight, const aclTensorList *biasOptional,                               \
    const aclTensorList *scaleOptional, const aclTensorList *offsetOptional, const aclTensorList *antiquantScaleOptional,                  \
    const aclTensorList *antiquantOffsetOptional, const aclTensorList *perTokenScaleOptional, const aclTensor *groupListOptional,          \
    const aclTensorList *activationInputOptional, const aclTensorList *activationQuantScaleOptional,                                       \
    const aclTensorList *activationQuantOffsetOptional, int64_t splitItem, int64_t groupType, int64_t groupListType, int64_t actType,      \
    aclTensorList *out, aclTensorList *activationFeatureOutOptional, aclTensorList *dynQuantScaleOutOptional)                              \
  X(FusedInferAttentionScoreV2, const aclTensor *query, const aclTensorList *key, const aclTensorList *value,                              \
    const aclTensor *pseShiftOptional, const aclTensor *attenMaskOptional, const aclIntArray *actualSeqLengthsOptional,                    \
    const aclIntArray *actualSeqLengthsKvOptional, const aclTensor *deqScale1Optional, const aclTensor *quantScale1Optional,               \
    const aclTensor *deqScale2Optional, const aclTensor *quantScale2Optional, const aclTensor *quantOffset2Optional,                       \
    const aclTensor *antiquantScaleOptional, const aclTensor *antiquantOffsetOptional, const aclTensor *blockTableOptional,                \
    const aclTensor *queryPaddingSizeOptional, const aclTensor *kvPaddingSizeOptional, const aclTensor *keyAntiquantScaleOptional,         \
    const aclTensor *keyAntiquantOffsetOptional, const aclTensor *valueAntiquantScaleOptional,                                             \
    const aclTensor *valueAntiquantOffsetOptional, const aclTensor *keySharedPrefixOptional, const aclTensor *valueSharedPrefixOptional,   \
    const aclIntArray *actualSharedPrefixLenOptional, int64_t numHeads, double scaleValue, int64_t preTokens, int64_t nextTokens,          \
    char *inputLayout, int64_t numKeyValueHeads, int64_t sparseMode, int64_t innerPrecise, int64_t blockSize, int64_t antiquantMode,       \
    bool softmaxLseFlag, int64_t keyAntiquantMode, int64_t valueAntiquantMode, const aclTensor *attentionOut, const aclTensor *softmaxLse) \
  X(FusedInferAttentionScoreV3, const aclTensor *query, const aclTensorList *key, const aclTensorList *value,                              \
    const aclTensor *pseShiftOptional, const aclTensor *attenMaskOptional, const aclIntArray *actualSeqLengthsOptional,                    \
    const aclIntArray *actualSeqLengthsKvOptional, const aclTensor *deqScale1Optional, const aclTensor *quantScale1Optional,               \
    const aclTensor *deqScale2Optional, const aclTensor *quantScale2Optional, const aclTensor *quantOffset2Optional,                       \
    const aclTensor *antiquantScaleOptional, const aclTensor *antiquantOffsetOptional, const aclTensor *blockTableOptional,                \
    const aclTensor *queryPaddingSizeOptional, const aclTensor *kvPaddingSizeOptional, const aclTensor *keyAntiquantScaleOptional,         \
    const aclTensor *keyAntiquantOffsetOptional, const aclTensor *valueAntiquantScaleOptional,                                             \
    const aclTensor *valueAntiquantOffsetOptional, const aclTensor *keySharedPrefixOptional, const aclTensor *valueSharedPrefixOptional,   \
    const aclIntArray *actualSharedPrefixLenOptional, const aclTensor *queryRopeOptional, const aclTensor *keyRopeOptional,                \
    const aclTensor *keyRopeAntiquantScaleOptional, int64_t numHeads, double scaleValue, int64_t preTokens, int64_t nextTokens,            \
    char *inputLayout, int64_t numKeyValueHeads, int64_t sparseMode, int64_t innerPrecise, int64_t blockSize, int64_t antiquantMode,       \
    bool softmaxLseFlag, int64_t keyAntiquantMode, int64_t valueAntiquantMode, const aclTensor *attentionOut, const aclTensor *softmaxLse) \
  X(FusedInferAttentionScoreV4, const aclTensor *query, const aclTensorList *key, const aclTensorList *value,                              \
    const aclTensor *pseShiftOptional, const aclTensor *attenMaskOptional, const aclIntArray *actualSeqLengthsOptional,                    \
    const aclIntArray *actualSeqLengthsKvOptional, const aclTensor *deqScale1Optional, const aclTensor *quantScale1Optional,               \
    const aclTensor *deqScale2Optional, const aclTensor *quantScale2Optional, const aclTensor *quantOffset2Optional,                       \
    const aclTensor *antiquantScaleOptional, const aclTensor *antiquantOffsetOptional, const aclTensor *blockTableOptional,                \
    const aclTensor *queryPaddingSizeOptional, const aclTensor *kvPaddingSizeOptional, const aclTensor *keyAntiquantScaleOptional,         \
    const aclTensor *keyAntiquantOffsetOptional, const aclTensor *valueAntiquantScaleOptional,                                             \
    const aclTensor *valueAntiquantOffsetOptional, const aclTensor *keySharedPrefixOptional, const aclTensor *valueSharedPrefixOptional,   \
    const aclIntArray *actualSharedPrefixLenOptional, const aclTensor *queryRopeOptional, const aclTensor *keyRopeOptional,                \
    const aclTensor *keyRopeAntiquantScaleOptional, const aclTensor *dequantScaleQueryOptional, const aclTensor *learnableSinkOptional,    \
    int64_t numHeads, double scaleValue, int64_t preTokens, int64_t nextTokens, char *inputLayout, int64_t numKeyValueHeads,               \
    int64_t sparseMode, int64_t innerPrecise, int64_t blockSize, int64_t antiquantMode, bool softmaxLseFlag, int64_t keyAntiquantMode,     \
    int64_t valueAntiquantMode, int64_t queryQuantMode, const aclTensor *attentionOut, const aclTensor *softmaxLse)                        \
  X(IncreFlashAttentionV4, const aclTensor *query, const aclTensorList *key, const aclTensorList *value, const aclTensor *pseShift,        \
    const aclTensor *attenMask, const aclIntArray *actualSeqLengths, const aclTensor *dequantScale1, const aclTensor *quantScale1,         \
    const aclTensor *dequantScale2, const aclTensor *quantScale2, const aclTensor *quantOffset2, const aclTensor *antiquantScale,          \
    const aclTensor *antiquantOffset, const aclTensor *blocktable, const aclTensor *kvPaddingSize, int64_t numHeads, double scaleValue,    \
    char *inputLayout, int64_t numKeyValueHeads, int64_t blockSize, int64_t innerPrecise, const aclTensor *attentionOut)                   \
  X(FlashAttentionScore, const aclTensor *query, const aclTensor *key, const aclTensor *value, const aclTensor *realShiftOptional,         \
    const aclTensor *dropMaskOptional, const aclTensor *paddingMaskOptional, const aclTensor *attenMaskOptional,                           \
    const aclIntArray *prefixOptional, double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum,         \
    char *inputLayout, int64_t innerPrecise, int64_t sparseMode, const aclTensor *softmaxMaxOut, const aclTensor *softmaxSumOut,           \
    const aclTensor *softmaxOutOut, const aclTensor *attentionOutOut)                                                                      \
  X(FlashAttentionVarLenScore, const aclTensor *query, const aclTensor *key, const aclTensor *value, const aclTensor *realShiftOptional,   \
    const aclTensor *dropMaskOptional, const aclTensor *paddingMaskOptional, const aclTensor *attenMaskOptional,                           \
    const aclIntArray *prefixOptional, const aclIntArray *actualSeqQLenOptional, const aclIntArray *actualSeqKvLenOptional,                \
    double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum, char *inputLayout, int64_t innerPrecise,   \
    int64_t sparseMode, const aclTensor *softmaxMaxOut, const aclTensor *softmaxSumOut, const aclTensor *softmaxOutOut,                    \
    const aclTensor *attentionOutOut)
/* clang-format on */

#endif
