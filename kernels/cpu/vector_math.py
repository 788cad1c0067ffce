"""Elementary functions on the 16-lane vector: branch free, a few units in the last place, NaN in gives NaN out."""

import numpy as np

from kernels.cpu.jit import kernel
from kernels.cpu.simd import add, div, fma, maximum, minimum, mul, nearest, power_of_two, splat, sub


@kernel
def number(x):
    """A constant in every lane."""
    return splat(np.float32(x))


@kernel
def exp(x):
    """e**x as 2**n * e**r with |r| <= ln(2) / 2 (Cephes' polynomial); below -87.3, where float32 thins out, 1e-38."""
    x = maximum(number(-87.33), minimum(number(88.37), x))
    n = nearest(mul(x, number(1.4426950408889634)))
    r = fma(n, number(2.12194440e-4), fma(n, number(-0.693359375), x))
    y = fma(number(1.9875691500e-4), r, number(1.3981999507e-3))
    y = fma(y, r, number(8.3334519073e-3))
    y = fma(y, r, number(4.1665795894e-2))
    y = fma(y, r, number(1.6666665459e-1))
    y = fma(y, r, number(5.0000001201e-1))
    y = add(fma(y, mul(r, r), r), number(1))
    return mul(y, power_of_two(n))


@kernel
def sigmoid(x):
    return div(number(1), add(number(1), exp(sub(number(0), x))))


@kernel
def tanh(x):
    """A rational minimax approximation (Eigen's), which is ±1 to within rounding where |x| is clamped."""
    x = maximum(number(-7.90531110763549805), minimum(number(7.90531110763549805), x))
    z = mul(x, x)
    p = fma(number(-2.76076847742355e-16), z, number(2.00018790482477e-13))
    p = fma(p, z, number(-8.60467152213735e-11))
    p = fma(p, z, number(5.12229709037114e-08))
    p = fma(p, z, number(1.48572235717979e-05))
    p = fma(p, z, number(6.37261928875436e-04))
    p = fma(p, z, number(4.89352455891786e-03))
    q = fma(number(1.19825839466702e-06), z, number(1.18534705686654e-04))
    q = fma(q, z, number(2.26843463243900e-03))
    q = fma(q, z, number(4.89352518554385e-03))
    return div(mul(x, p), q)


@kernel
def erf(x):
    """A rational minimax approximation (Eigen's), which is ±1 to within rounding where |x| is clamped."""
    x = maximum(number(-4), minimum(number(4), x))
    z = mul(x, x)
    p = fma(number(-2.72614225801306e-10), z, number(2.77068142495902e-08))
    p = fma(p, z, number(-2.10102402082508e-06))
    p = fma(p, z, number(-5.69250639462346e-05))
    p = fma(p, z, number(-7.34990630326855e-04))
    p = fma(p, z, number(-2.95459980854025e-03))
    p = fma(p, z, number(-1.60960333262415e-02))
    q = fma(number(-1.45660718464996e-05), z, number(-2.13374055278905e-04))
    q = fma(q, z, number(-1.68282697438203e-03))
    q = fma(q, z, number(-7.37332916720468e-03))
    q = fma(q, z, number(-1.42647390514189e-02))
    return div(mul(x, p), q)
