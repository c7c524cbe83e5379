"""The operators that a user of PyTorch expects, by the names of torch's OpInfo."""

_NAMES = """
abs acos acosh add addcdiv addcmul all amax amin any arange argmax argmin asin asinh atan atan2
atanh ceil clamp clamp_max clamp_min copysign cos cosh count_nonzero cumprod cumsum cummax
cummin deg2rad div.floor_rounding div.no_rounding_mode div.trunc_rounding eq erf erfc exp exp2
expm1 float_power floor floor_divide fmax fmin fmod frac full_like ge gt heaviside hypot isclose
isfinite isinf isnan le lerp log log10 log1p log2 logaddexp logaddexp2 logcumsumexp logical_and
logical_not logical_or logical_xor logit logsumexp lt max.binary max.reduction_no_dim
max.reduction_with_dim maximum mean min.binary min.reduction_no_dim min.reduction_with_dim
minimum mul nan_to_num ne neg ones_like pow prod rad2deg reciprocal remainder round rsqrt rsub
sigmoid sign sin sinc sinh sqrt square std std.unbiased sub sum tan tanh true_divide trunc var
var.unbiased var_mean where xlogy zeros_like bitwise_and bitwise_or bitwise_xor bitwise_not
addbmm addmm addmv addr baddbmm bmm dot einsum inner kron linalg.vecdot linalg.vector_norm
matmul mm mv norm outer tensordot trace vdot nn.functional.linear nn.functional.bilinear
nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d
nn.functional.conv_transpose2d nn.functional.conv_transpose3d nn.functional.max_pool1d
nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.avg_pool1d
nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.adaptive_avg_pool1d
nn.functional.adaptive_avg_pool2d nn.functional.adaptive_avg_pool3d
nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d nn.functional.pixel_shuffle
nn.functional.pixel_unshuffle nn.functional.interpolate.nearest
nn.functional.interpolate.bilinear nn.functional.interpolate.linear
nn.functional.upsample_nearest nn.functional.upsample_bilinear nn.functional.pad.constant
nn.functional.pad.reflect nn.functional.pad.replicate nn.functional.pad.circular
nn.functional.unfold nn.functional.embedding nn.functional.embedding_bag gather scatter
scatter_add scatter_reduce.sum scatter_reduce.prod scatter_reduce.amax scatter_reduce.amin
index_select index_add take_along_dim nn.functional.one_hot tril triu masked_fill
select narrow cat stack chunk split split.list_args split_with_sizes tensor_split unbind hstack
vstack dstack slice __getitem__ flip fliplr flipud roll transpose permute movedim t squeeze
unsqueeze reshape view flatten unflatten expand broadcast_to repeat tile repeat_interleave diag
diagonal sort argsort msort topk kthvalue nn.functional.channel_shuffle meshgrid.list_of_tensors
softmax log_softmax nn.functional.softmin nn.functional.layer_norm nn.functional.rms_norm
nn.functional.batch_norm nn.functional.group_norm nn.functional.instance_norm
nn.functional.normalize nn.functional.local_response_norm nn.functional.celu nn.functional.elu
nn.functional.gelu nn.functional.glu nn.functional.hardshrink nn.functional.hardsigmoid
nn.functional.hardswish nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid
nn.functional.mish nn.functional.prelu nn.functional.relu nn.functional.relu6 nn.functional.selu
nn.functional.silu nn.functional.softplus nn.functional.softshrink nn.functional.softsign
nn.functional.tanhshrink nn.functional.threshold nn.functional.dropout nn.functional.dropout2d
nn.functional.alpha_dropout nn.functional.scaled_dot_product_attention
nn.functional.cross_entropy nn.functional.nll_loss nn.functional.binary_cross_entropy
nn.functional.binary_cross_entropy_with_logits nn.functional.mse_loss nn.functional.l1_loss
nn.functional.smooth_l1_loss nn.functional.huber_loss nn.functional.kl_div
nn.functional.cosine_similarity nn.functional.cosine_embedding_loss
nn.functional.triplet_margin_loss nn.functional.margin_ranking_loss
nn.functional.hinge_embedding_loss nn.functional.soft_margin_loss nn.functional.poisson_nll_loss
nn.functional.gaussian_nll_loss nn.functional.pairwise_distance cdist
erfinv lgamma digamma signbit isposinf isneginf bitwise_left_shift bitwise_right_shift
round.decimals_0 round.decimals_3 round.decimals_neg_3 nansum take index_fill searchsorted
bucketize cross linalg.cross rot90 unfold column_stack diag_embed
median nanmedian quantile nanquantile nanmean aminmax dist norm.fro norm.inf equal allclose isin
double float half bfloat16 long int short char byte bool ldexp special.xlog1py ravel T mT
__radd__ __rsub__ __rmul__ __rdiv__ __rmod__ __rpow__ __rmatmul__ __rand__ __ror__ __rxor__
reshape_as view_as atleast_1d atleast_2d atleast_3d hsplit vsplit dsplit diagflat
broadcast_tensors index_copy bincount linalg.multi_dot linalg.diagonal fill nn.functional.dropout3d
nn.functional.feature_alpha_dropout.with_train
nn.functional.feature_alpha_dropout.without_train nn.functional.interpolate.area
nn.functional.ctc_loss
nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss
nn.functional.multilabel_soft_margin_loss
nn.functional.grid_sample grid_sampler_2d grid_sampler_3d
"""

OPERATORS: tuple[str, ...] = tuple(_NAMES.split())
"""Elementwise and reductions, products, windows, places, layers, losses."""

_NODES = """
Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike
CausalConvWithState Ceil Celu CenterCropPad Clip Col2Im Concat ConstantOfShape Conv ConvInteger
ConvTranspose Cos Cosh CumProd CumSum DepthToSpace DequantizeLinear Div Dropout
DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather
GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample
GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LSTM
LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul
MatMulInteger Max MaxPool MaxUnpool Mean MeanVarianceNormalization Min Mish Mod Mul Neg
NegativeLogLikelihoodLoss Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear
RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence
RotaryEmbedding Round Scatter ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin Sinh Slice
Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum SwiGLU
Swish Tan Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
"""

NODE_TYPES: tuple[str, ...] = tuple(_NODES.split())
"""The same, by the types of ONNX's nodes."""
