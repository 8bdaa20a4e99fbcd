"""Operators at which gradients stop: their outputs are integers, booleans or piecewise constant."""

from __future__ import annotations

from onnxremat.grad.registry import non_differentiable

COMPARISONS = "Equal Greater GreaterOrEqual Less LessOrEqual Not And Or Xor IsNaN IsInf"
STEPS = "Sign Floor Ceil Round"
CHOICES = "ArgMax ArgMin NonZero Hardmax Unique NonMaxSuppression"
SHAPES = "Shape Size ConstantOfShape Range EyeLike Constant"
RANDOM = "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli"
INTEGERS = (
    "BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot MatMulInteger ConvInteger "
    "QuantizeLinear DynamicQuantizeLinear"
)
STRINGS = "StringNormalizer StringConcat StringSplit RegexFullMatch TfIdfVectorizer"

for _group in (COMPARISONS, STEPS, CHOICES, SHAPES, RANDOM, INTEGERS, STRINGS):
    non_differentiable(*_group.split())
