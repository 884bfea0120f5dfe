/* Energy and gradient of a fully connected network over all rows, for chains of parameters:

       U(theta) = -factor sum_i log p(y_i | x_i, theta) + sum_j precision_j (theta_j - mean_j)^2 / 2 + constant

   Everything is kept transposed, [unit][row], in blocks of rows that stay in the cache: rows fill the vectors, and a
   weight is one number for a whole vector. Products of matrices run in tiles that fit the registers. The loops over
   single numbers are plain, so that a compiler can turn them into vector instructions.

   The file includes itself, once for single and once for double precision. */
#ifndef REAL

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__SSE__) || defined(__x86_64__)
#include <xmmintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

enum { IDENTITY, TANH, RELU, LEAKY_RELU, SIGMOID, SILU, ELU, SOFTPLUS };
enum { CATEGORICAL, BERNOULLI, NORMAL, HETEROSCEDASTIC, LEARNED_NORMAL };
#define MOST_NOISE ((REAL)1e15) /* beyond which the noise grows no more */
#define LEAST_LOG_NOISE (-20) /* below which it falls no more */

typedef struct {
    int64_t in, out, weight, bias, activation; /* places in theta; a bias of -1 is none */
    double slope;
} layer_t;

typedef struct {
    int64_t layers, rows, block, parameters, likelihood, by_rows, widest, scratch_size;
    int64_t columns, scales;  /* of y; log noise scales at the end of theta, none, one, or one a column */
    double factor, constant;
    const layer_t *layer;
    const void *x;            /* blocks of [input][row] */
    const void *x_rows;       /* [row][input], if by_rows */
    const void *y;            /* blocks of [column][row] */
    const void *mean;         /* of the Gaussian prior; none if null */
    const void *precision;
    void *scratch;            /* scratch_size numbers a thread */
} plan_t;

#if defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define DEEP 3 /* vectors of rows in a tile */
#define INLINE static inline __attribute__((always_inline))
#define LOOP static __attribute__((noinline)) void
#define UNROLL _Pragma("GCC unroll 16")
#if defined(__x86_64__) && defined(__GNUC__)
#define KEEP(v) __asm__ volatile("" : "+x"(v)) /* in a register, instead of reading it anew at each use */
#else
#define KEEP(v)
#endif

/* Numbers too small for the normal format cost hundreds of cycles each: they are zero here. */
static inline unsigned flush_subnormals(void) {
#if defined(__SSE__) || defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u);
    return before;
#else
    return 0;
#endif
}

static inline void restore_subnormals(unsigned before) {
#if defined(__SSE__) || defined(__x86_64__)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define N(name) JOIN(name, REAL)

#define REAL float
#define BITS uint32_t
#define SINGLE 1
#include "mlp.c"
#undef REAL
#undef BITS
#undef SINGLE
#define REAL double
#define BITS uint64_t
#define SINGLE 0
#include "mlp.c"

#else /* ------------------------------------------------------------------ for each precision */

typedef REAL N(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef BITS N(words) __attribute__((vector_size(VECTOR_BYTES), may_alias));
#define VEC N(vec)
#define WORDS N(words)
#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))
#define STRIP (DEEP * LANES)

INLINE VEC N(load)(const REAL *p) { return *(const VEC *)p; }
INLINE void N(store)(REAL *p, VEC v) { *(VEC *)p = v; }

/* ---- functions of one number */

#if SINGLE
#define ROUND 12582912.0f /* adding it rounds to an integer, which is then in the low bits */
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
#define EXPONENT_PLACE 23
#define ONE_BITS 0x3F800000u
#define FRACTION_MASK 0x007FFFFFu
#define LARGEST_EXPONENT 87.0f
#define SATURATED 28.0f /* log2 of e^2x beyond which tanh x is one */
#else
#define ROUND 6755399441055744.0
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10
#define EXPONENT_PLACE 52
#define ONE_BITS 0x3FF0000000000000u
#define FRACTION_MASK 0x000FFFFFFFFFFFFFu
#define LARGEST_EXPONENT 708.0
#define SATURATED 58.0
#endif

INLINE REAL N(clamp)(REAL x, REAL bound) { /* a NaN stays one */
    x = x < -bound ? -bound : x;
    return x > bound ? bound : x;
}

/* e^x = scale (1 + p), scale a power of two, p = e^r - 1 for a remainder |r| <= ln(2) / 2 */
INLINE REAL N(exp_parts)(REAL x, REAL *scale) {
    REAL shifted = x * (REAL)1.4426950408889634 + ROUND;
    REAL n = shifted - ROUND;
    BITS bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << EXPONENT_PLACE) + ONE_BITS;
    memcpy(scale, &bits, sizeof bits);
    REAL r = x - n * LN2_HIGH;
    r = r - n * LN2_LOW;
#if SINGLE
    REAL h = 0.0013926183587713494f;
    h = h * r + 0.008363179052722578f;
    h = h * r + 0.041666554617204574f;
    h = h * r + 0.16666576989698775f;
    h = h * r + 0.5f;
#else
    REAL h = 2.510038549551032e-08;
    h = h * r + 2.7620088445409746e-07;
    h = h * r + 2.7557268459997064e-06;
    h = h * r + 2.4801521295954376e-05;
    h = h * r + 0.00019841269863053618;
    h = h * r + 0.0013888888917213717;
    h = h * r + 0.008333333333330062;
    h = h * r + 0.04166666666662413;
    h = h * r + 0.16666666666666669;
    h = h * r + 0.5;
#endif
    return r * r * h + r;
}

INLINE REAL N(exponential)(REAL x) {
    REAL scale, p = N(exp_parts)(N(clamp)(x, LARGEST_EXPONENT), &scale);
    return scale * p + scale;
}

INLINE REAL N(exponential_minus_one)(REAL x) {
    REAL scale, p = N(exp_parts)(N(clamp)(x, LARGEST_EXPONENT), &scale);
    return scale * p + (scale - 1);
}

/* ln(1 + u) for 0 <= u <= 1: 2 artanh s with s = u / (2 + u) */
INLINE REAL N(log_one_plus)(REAL u) {
    REAL s = u / (u + 2), t = s * s;
#if SINGLE
    REAL q = 0.2322432922402335f;
    q = q * t + 0.21706575800880373f;
    q = q * t + 0.28592357994302836f;
    q = q * t + 0.3999970633192972f;
    q = q * t + 0.6666666732052742f;
#else
    REAL q = 0.1616404561194353;
    q = q * t + 0.08800738486144674;
    q = q * t + 0.12001072809590713;
    q = q * t + 0.13314144209654935;
    q = q * t + 0.15385570064958623;
    q = q * t + 0.18181789436132859;
    q = q * t + 0.22222222717427864;
    q = q * t + 0.2857142856710876;
    q = q * t + 0.40000000000014585;
    q = q * t + 0.6666666666666666;
#endif
    return s * t * q + (s + s);
}

/* ln x for x >= 1; what is not finite becomes NaN */
INLINE REAL N(natural_log)(REAL x) {
    BITS bits, fraction;
    memcpy(&bits, &x, sizeof bits);
    fraction = (bits & FRACTION_MASK) | ONE_BITS;
    REAL m, e, shifted;
    memcpy(&m, &fraction, sizeof m);
    BITS place = (bits >> EXPONENT_PLACE); /* an integer in the low bits of ROUND is that integer plus ROUND */
    REAL base = ROUND;
    BITS base_bits;
    memcpy(&base_bits, &base, sizeof base_bits);
    base_bits += place;
    memcpy(&shifted, &base_bits, sizeof shifted);
    e = shifted - (ROUND + (REAL)(ONE_BITS >> EXPONENT_PLACE));
    return e * LN2_HIGH + (e * LN2_LOW + N(log_one_plus)(m - 1)) + (x - x);
}

INLINE REAL N(sigmoid)(REAL x) { return 1 / (1 + N(exponential)(-x)); }

/* ln(1 + e^x) and its derivative */
INLINE REAL N(softplus)(REAL x, REAL *derivative) {
    REAL size = x < 0 ? -x : x;
    REAL u = N(exponential)(-size), share = 1 / (1 + u);
    *derivative = x < 0 ? u * share : share;
    return (x < 0 ? 0 : x) + N(log_one_plus)(u);
}

/* ---- activations, on [unit][row] */

#define EACH(body)                                                                                                     \
    for (int64_t u = 0; u < units; u++) {                                                                              \
        for (int64_t r = 0; r < n; r++) {                                                                              \
            body;                                                                                                      \
        }                                                                                                              \
        a += stride;                                                                                                   \
        d += stride;                                                                                                   \
    }
#define ACTIVATION(name, body)                                                                                         \
    LOOP N(name)(REAL *restrict a, REAL *restrict d, REAL slope, int64_t units, int64_t n, int64_t stride) {           \
        (void)slope;                                                                                                   \
        EACH(body)                                                                                                     \
    }

ACTIVATION(apply_relu, a[r] = a[r] < 0 ? 0 : a[r])
ACTIVATION(apply_leaky, a[r] = a[r] > 0 ? a[r] : slope * a[r])
ACTIVATION(apply_sigmoid, a[r] = N(sigmoid)(a[r]))
ACTIVATION(apply_silu, REAL z = a[r]; REAL s = N(sigmoid)(z); a[r] = z * s; d[r] = s + z * s * (1 - s))
ACTIVATION(apply_elu, REAL z = a[r]; REAL e = N(exponential_minus_one)(z); a[r] = z > 0 ? z : e)
ACTIVATION(apply_softplus, REAL z = a[r]; REAL slant; REAL s = N(softplus)(z, &slant); a[r] = z > 20 ? z : s;
           d[r] = z > 20 ? 1 : slant)

INLINE VEC N(clamp_all)(VEC x, REAL bound) {
    VEC low = (VEC){0} - bound, high = (VEC){0} + bound;
#if defined(__AVX__) && SINGLE
    return (VEC)_mm256_min_ps((__m256)high, _mm256_max_ps((__m256)low, (__m256)x));
#elif defined(__AVX__)
    return (VEC)_mm256_min_pd((__m256d)high, _mm256_max_pd((__m256d)low, (__m256d)x));
#else
    WORDS below = (WORDS)(x < low), above = (WORDS)(x > high);
    return (VEC)((below & (WORDS)low) | (above & (WORDS)high) | (~(below | above) & (WORDS)x));
#endif
}

/* With t = e^2x - 1: tanh x = t / (t + 2), exact near zero too. Here e^2x is 2^n 2^f: in powers of two the remainder f
   has no rounding of its own, and that of 2 x log2(e) does not matter where it is large. Several vectors at once,
   because each operation waits for the one before. */
#if SINGLE
#define TANH_TERMS 6
static const REAL N(tanh_terms)[TANH_TERMS] = {0.0001545318282995974f, 0.0013390886332106697f, 0.009618082519990467f,
                                               0.05550357071152507f,   0.24022650760645808f,   0.6931471880352003f};
#else
#define TANH_TERMS 12
static const REAL N(tanh_terms)[TANH_TERMS] = {
    2.5729344553786755e-11, 4.455822025014915e-10,  7.054897292691627e-09, 1.0178057064573359e-07,
    1.3215486808727859e-06, 1.5252733841601815e-05, 0.00015403530393370715, 0.0013333558146406436,
    0.00961812910762848,    0.055504108664821625,   0.24022650695910072,    0.6931471805599453};
#endif

LOOP N(apply_tanh)(REAL *a, int64_t units, int64_t n, int64_t stride) {
    for (int64_t u = 0; u < units; u++, a += stride) {
        for (int64_t r = 0; r < n; r += STRIP) {
            VEC y[DEEP], f[DEEP], h[DEEP], scale[DEEP];
#define TOGETHER(body) UNROLL for (int v = 0; v < DEEP; v++) { body; }
            TOGETHER(y[v] = N(clamp_all)(N(load)(a + r + v * LANES) * (REAL)2.8853900817779268, SATURATED))
            TOGETHER(scale[v] = y[v] + ROUND)
            TOGETHER(f[v] = y[v] - (scale[v] - ROUND))
            TOGETHER(scale[v] = (VEC)(((WORDS)scale[v] << EXPONENT_PLACE) + ONE_BITS))
            TOGETHER(h[v] = f[v] * N(tanh_terms)[0] + N(tanh_terms)[1])
            UNROLL for (int k = 2; k < TANH_TERMS; k++) {
                TOGETHER(h[v] = h[v] * f[v] + N(tanh_terms)[k])
            }
            TOGETHER(h[v] = scale[v] * (h[v] * f[v]) + (scale[v] - 1))
            TOGETHER(N(store)(a + r + v * LANES, h[v] / (h[v] + 2)))
#undef TOGETHER
        }
    }
}

static void N(activate)(const layer_t *layer, REAL *a, REAL *derivative, int64_t n, int64_t stride) {
    REAL slope = (REAL)layer->slope;
    switch (layer->activation) {
    case TANH: N(apply_tanh)(a, layer->out, n, stride); break;
    case RELU: N(apply_relu)(a, derivative, slope, layer->out, n, stride); break;
    case LEAKY_RELU: N(apply_leaky)(a, derivative, slope, layer->out, n, stride); break;
    case SIGMOID: N(apply_sigmoid)(a, derivative, slope, layer->out, n, stride); break;
    case SILU: N(apply_silu)(a, derivative, slope, layer->out, n, stride); break;
    case ELU: N(apply_elu)(a, derivative, slope, layer->out, n, stride); break;
    case SOFTPLUS: N(apply_softplus)(a, derivative, slope, layer->out, n, stride); break;
    }
}

/* d *= derivative, told from the activation h (for some, h is the derivative itself); sums over rows are added to g */
INLINE REAL N(sum)(VEC v) {
#if defined(__AVX__) && SINGLE
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    REAL total = 0;
    UNROLL for (int k = 0; k < LANES; k++) total += v[k];
    return total;
#endif
}

INLINE VEC N(where_positive)(VEC h, VEC yes, VEC no) {
    WORDS mask = (WORDS)(h > 0);
    return (VEC)((mask & (WORDS)yes) | (~mask & (WORDS)no));
}

#define BACK(name, product)                                                                                            \
    LOOP N(name)(const REAL *a, REAL *d, REAL slope, int64_t units, int64_t n, int64_t stride, REAL *g) {              \
        (void)slope;                                                                                                   \
        for (int64_t u = 0; u < units; u++, a += stride, d += stride) {                                                \
            VEC sum[DEEP] = {{0}};                                                                                     \
            for (int64_t r = 0; r < n; r += STRIP) {                                                                   \
                UNROLL for (int v = 0; v < DEEP; v++) {                                                                \
                    VEC h = N(load)(a + r + v * LANES), e = N(load)(d + r + v * LANES);                                \
                    (void)h;                                                                                           \
                    e = product;                                                                                       \
                    N(store)(d + r + v * LANES, e);                                                                    \
                    sum[v] += e;                                                                                       \
                }                                                                                                      \
            }                                                                                                          \
            if (g) g[u] += N(sum)(sum[0] + sum[1] + sum[2]);                                                           \
        }                                                                                                              \
    }

BACK(back_identity, e)
BACK(back_tanh, e - e * h * h)
BACK(back_relu, N(where_positive)(h, e, (VEC){0}))
BACK(back_leaky, N(where_positive)(h, e, slope * e))
BACK(back_sigmoid, e * h * (1 - h))
BACK(back_elu, N(where_positive)(h, e, e + e * h))
BACK(back_stored, e * h)

static void N(deactivate)(const layer_t *layer, const REAL *a, const REAL *derivative, REAL *d, int64_t n,
                          int64_t stride, REAL *g) {
    REAL slope = (REAL)layer->slope;
    switch (layer->activation) {
    case TANH: N(back_tanh)(a, d, slope, layer->out, n, stride, g); break;
    case RELU: N(back_relu)(a, d, slope, layer->out, n, stride, g); break;
    case LEAKY_RELU: N(back_leaky)(a, d, slope, layer->out, n, stride, g); break;
    case SIGMOID: N(back_sigmoid)(a, d, slope, layer->out, n, stride, g); break;
    case ELU: N(back_elu)(a, d, slope, layer->out, n, stride, g); break;
    case SILU:
    case SOFTPLUS: N(back_stored)(derivative, d, slope, layer->out, n, stride, g); break;
    default: N(back_identity)(a, d, slope, layer->out, n, stride, g);
    }
}

/* ---- products */

/* out[o][r] = bias[o] + sum_k w[o so + k sk] a[k][r], for O outputs and one strip of rows */
INLINE void N(product_tile)(const int O, const REAL *w, int64_t so, int64_t sk, int64_t inner, const REAL *bias,
                            const REAL *a, REAL *out, int64_t stride) {
    VEC sum[4][DEEP];
    UNROLL for (int o = 0; o < O; o++) {
        REAL b = bias ? bias[o] : 0;
        UNROLL for (int v = 0; v < DEEP; v++) sum[o][v] = (VEC){0} + b;
    }
    for (int64_t k = 0; k < inner; k++) {
        VEC row[DEEP];
        UNROLL for (int v = 0; v < DEEP; v++) {
            row[v] = N(load)(a + k * stride + v * LANES);
            KEEP(row[v]);
        }
        UNROLL for (int o = 0; o < O; o++) {
            REAL weight = w[o * so + k * sk];
            UNROLL for (int v = 0; v < DEEP; v++) sum[o][v] += weight * row[v];
        }
    }
    UNROLL for (int o = 0; o < O; o++) {
        UNROLL for (int v = 0; v < DEEP; v++) N(store)(out + o * stride + v * LANES, sum[o][v]);
    }
}

LOOP N(product)(const REAL *w, int64_t so, int64_t sk, int64_t inner, int64_t outer, const REAL *bias, const REAL *a,
                REAL *out, int64_t n, int64_t stride) {
    for (int64_t o = 0; o < outer; o += 4) {
        const REAL *wo = w + o * so, *b = bias ? bias + o : 0;
        REAL *to = out + o * stride;
        int64_t left = outer - o;
        for (int64_t r = 0; r < n; r += STRIP) {
            if (left >= 4) N(product_tile)(4, wo, so, sk, inner, b, a + r, to + r, stride);
            else if (left == 3) N(product_tile)(3, wo, so, sk, inner, b, a + r, to + r, stride);
            else if (left == 2) N(product_tile)(2, wo, so, sk, inner, b, a + r, to + r, stride);
            else N(product_tile)(1, wo, so, sk, inner, b, a + r, to + r, stride);
        }
    }
}

/* to[0..3] += the sums of four vectors */
INLINE void N(add_sums)(REAL *to, VEC a, VEC b, VEC c, VEC d) {
#if defined(__AVX__) && SINGLE
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps((__m256)a, (__m256)b), _mm256_hadd_ps((__m256)c, (__m256)d));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), four));
#elif defined(__AVX__)
    __m256d ab = _mm256_hadd_pd((__m256d)a, (__m256d)b), cd = _mm256_hadd_pd((__m256d)c, (__m256d)d);
    __m256d four = _mm256_add_pd(_mm256_permute2f128_pd(ab, cd, 0x20), _mm256_permute2f128_pd(ab, cd, 0x31));
    _mm256_storeu_pd(to, _mm256_add_pd(_mm256_loadu_pd(to), four));
#else
    to[0] += N(sum)(a);
    to[1] += N(sum)(b);
    to[2] += N(sum)(c);
    to[3] += N(sum)(d);
#endif
}

/* g[o][i] += sum_r d[o][r] a[i][r] for O times I numbers */
INLINE void N(gram_tile)(const int O, const int I, const REAL *d, const REAL *a, int64_t n, int64_t stride, REAL *g,
                         int64_t in) {
    VEC sum[3][4];
    UNROLL for (int o = 0; o < O; o++) {
        UNROLL for (int i = 0; i < I; i++) sum[o][i] = (VEC){0};
    }
    for (int64_t r = 0; r < n; r += LANES) {
        VEC left[3];
        UNROLL for (int o = 0; o < O; o++) {
            left[o] = N(load)(d + o * stride + r);
            KEEP(left[o]);
        }
        UNROLL for (int i = 0; i < I; i++) {
            VEC right = N(load)(a + i * stride + r);
            KEEP(right);
            UNROLL for (int o = 0; o < O; o++) {
                sum[o][i] += left[o] * right;
                KEEP(sum[o][i]);
            }
        }
    }
    UNROLL for (int o = 0; o < O; o++) {
        if (I == 4) N(add_sums)(g + o * in, sum[o][0], sum[o][1], sum[o][2], sum[o][3]);
        else UNROLL for (int i = 0; i < I; i++) g[o * in + i] += N(sum)(sum[o][i]);
    }
}

INLINE void N(gram_row)(const int O, const REAL *d, const REAL *a, int64_t n, int64_t stride, REAL *g, int64_t in) {
    int64_t i = 0;
    for (; i + 4 <= in; i += 4) N(gram_tile)(O, 4, d, a + i * stride, n, stride, g + i, in);
    if (in - i == 3) N(gram_tile)(O, 3, d, a + i * stride, n, stride, g + i, in);
    else if (in - i == 2) N(gram_tile)(O, 2, d, a + i * stride, n, stride, g + i, in);
    else if (in - i == 1) N(gram_tile)(O, 1, d, a + i * stride, n, stride, g + i, in);
}

LOOP N(gram)(const REAL *d, const REAL *a, int64_t out, int64_t in, int64_t n, int64_t stride, REAL *g) {
    int64_t o = 0;
    for (; o + 3 <= out; o += 3) N(gram_row)(3, d + o * stride, a, n, stride, g + o * in, in);
    if (out - o == 2) N(gram_row)(2, d + o * stride, a, n, stride, g + o * in, in);
    else if (out - o == 1) N(gram_row)(1, d + o * stride, a, n, stride, g + o * in, in);
}

/* The same for inputs that are many and known as [row][input]: vectors run along the inputs, nothing is summed across */
INLINE void N(outer_tile)(const int O, const int D, const REAL *d, const REAL *x, int64_t rows, int64_t stride, REAL *g,
                          int64_t in) {
    VEC sum[4][DEEP];
    UNROLL for (int o = 0; o < O; o++) {
        UNROLL for (int v = 0; v < D; v++) sum[o][v] = N(load)(g + o * in + v * LANES);
    }
    for (int64_t r = 0; r < rows; r++) {
        VEC row[DEEP];
        UNROLL for (int v = 0; v < D; v++) {
            row[v] = N(load)(x + r * in + v * LANES);
            KEEP(row[v]);
        }
        UNROLL for (int o = 0; o < O; o++) {
            REAL weight = d[o * stride + r];
            UNROLL for (int v = 0; v < D; v++) sum[o][v] += weight * row[v];
        }
    }
    UNROLL for (int o = 0; o < O; o++) {
        UNROLL for (int v = 0; v < D; v++) N(store)(g + o * in + v * LANES, sum[o][v]);
    }
}

INLINE void N(outer_row)(const int O, const REAL *d, const REAL *x, int64_t i, int64_t rows, int64_t stride, REAL *g,
                         int64_t in) {
    if (i + STRIP <= in) {
        N(outer_tile)(O, DEEP, d, x + i, rows, stride, g + i, in);
        return;
    }
    for (; i + LANES <= in; i += LANES) N(outer_tile)(O, 1, d, x + i, rows, stride, g + i, in);
    for (; i < in; i++) {
        for (int o = 0; o < O; o++) {
            REAL total = 0;
            for (int64_t r = 0; r < rows; r++) total += d[o * stride + r] * x[r * in + i];
            g[o * in + i] += total;
        }
    }
}

LOOP N(outer)(const REAL *d, const REAL *x, int64_t out, int64_t in, int64_t rows, int64_t stride, REAL *g) {
    for (int64_t i = 0; i < in; i += STRIP) {
        int64_t o = 0;
        for (; o + 4 <= out; o += 4) N(outer_row)(4, d + o * stride, x, i, rows, stride, g + o * in, in);
        for (; o < out; o++) N(outer_row)(1, d + o * stride, x, i, rows, stride, g + o * in, in);
    }
}

/* ---- likelihoods: energies of rows into e, derivatives in the outputs into d (unless null) */

LOOP N(largest)(const REAL *restrict z, REAL *restrict top, int64_t n) {
    for (int64_t r = 0; r < n; r++) top[r] = z[r] > top[r] ? z[r] : top[r];
}

LOOP N(add_class)(const REAL *restrict z, const REAL *restrict label, REAL class, const REAL *restrict top,
                  REAL *restrict total, REAL *restrict own, REAL *restrict d, int64_t n) {
    for (int64_t r = 0; r < n; r++) {
        REAL centred = z[r] - top[r], u = N(exponential)(centred);
        total[r] += u;
        own[r] = label[r] == class ? centred : own[r];
        d[r] = u;
    }
}

LOOP N(finish_rows)(REAL *restrict total, const REAL *restrict own, REAL *restrict e, REAL factor, int64_t n) {
    for (int64_t r = 0; r < n; r++) {
        e[r] = N(natural_log)(total[r]) - own[r];
        total[r] = factor / total[r];
    }
}

LOOP N(finish_class)(const REAL *restrict label, REAL class, const REAL *restrict share, REAL factor, REAL *restrict d,
                     int64_t n) {
    for (int64_t r = 0; r < n; r++) d[r] = d[r] * share[r] - (label[r] == class ? factor : 0);
}

static void N(categorical)(const REAL *z, const REAL *label, REAL factor, REAL *work, REAL *d, int64_t classes,
                           int64_t n, int64_t stride) {
    REAL *e = work, *top = work + stride, *total = work + 2 * stride, *own = work + 3 * stride;
    memcpy(top, z, n * sizeof(REAL));
    for (int64_t c = 1; c < classes; c++) N(largest)(z + c * stride, top, n);
    memset(total, 0, n * sizeof(REAL));
    for (int64_t c = 0; c < classes; c++) {
        N(add_class)(z + c * stride, label, (REAL)c, top, total, own, d + c * stride, n);
    }
    N(finish_rows)(total, own, e, factor, n);
    for (int64_t c = 0; c < classes; c++) N(finish_class)(label, (REAL)c, total, factor, d + c * stride, n);
}

LOOP N(bernoulli)(const REAL *restrict z, const REAL *restrict y, REAL factor, REAL *restrict e, REAL *restrict d,
                  int64_t n) {
    for (int64_t r = 0; r < n; r++) {
        REAL share, s = N(softplus)(z[r], &share);
        e[r] += s - y[r] * z[r];
        d[r] = factor * (share - y[r]);
    }
}

LOOP N(normal)(const REAL *restrict z, const REAL *restrict y, REAL factor, REAL *restrict e, REAL *restrict d,
               int64_t n) {
    for (int64_t r = 0; r < n; r++) {
        REAL off = z[r] - y[r];
        e[r] += (REAL)0.5 * off * off;
        d[r] = factor * off;
    }
}

/* Of means z and what the noise is made of, s: exp(s) up to 1, and 1 + s from there on. */
LOOP N(heteroscedastic)(const REAL *restrict z, const REAL *restrict s, const REAL *restrict y, REAL factor,
                        REAL *restrict e, REAL *restrict d, REAL *restrict d_noise, int64_t n) {
    for (int64_t r = 0; r < n; r++) {
        REAL below = s[r] > 0 ? 0 : s[r] < LEAST_LOG_NOISE ? LEAST_LOG_NOISE : s[r];
        REAL above = 1 + (s[r] > MOST_NOISE ? MOST_NOISE : s[r] > 0 ? s[r] : 0);
        REAL share = 1 / above;
        REAL inverse = N(exponential)(-below) * share;
        REAL off = (z[r] - y[r]) * inverse;
        e[r] += (REAL)0.5 * off * off + (below + N(natural_log)(above));
        d[r] = factor * off * inverse;
        d_noise[r] = s[r] > MOST_NOISE || s[r] < LEAST_LOG_NOISE ? 0 : factor * (1 - off * off) * share;
    }
}

static double N(sum_of_rows)(const REAL *values, int64_t count) {
    double total[4] = {0, 0, 0, 0};
    int64_t r = 0;
    for (; r + 4 <= count; r += 4) {
        for (int k = 0; k < 4; k++) total[k] += values[r + k];
    }
    for (; r < count; r++) total[0] += values[r];
    return (total[0] + total[1]) + (total[2] + total[3]);
}

/* Noise scales that are part of theta, log_noise, with their slopes: the sum of squares of each column is kept apart. */
static double N(learned_normal)(const plan_t *plan, const REAL *z, const REAL *y, const REAL *log_noise, REAL *slope,
                                REAL *work, REAL *d, int64_t rows, int64_t n, int64_t stride) {
    double total = 0;
    for (int64_t c = 0; c < plan->columns; c++) {
        int64_t at = c * stride, k = plan->scales > 1 ? c : 0;
        double precision = exp(-2.0 * (double)log_noise[k]);
        memset(work, 0, n * sizeof(REAL));
        N(normal)(z + at, y + at, (REAL)(plan->factor * precision), work, d + at, n);
        double squares = precision * N(sum_of_rows)(work, rows);
        total += squares + (double)rows * (double)log_noise[k];
        if (slope) slope[k] += (REAL)(plan->factor * ((double)rows - 2 * squares));
    }
    return plan->factor * total;
}

static double N(likelihood)(const plan_t *plan, const REAL *z, const REAL *y, const REAL *log_noise, REAL *slope,
                            REAL *work, REAL *d, int64_t outputs, int64_t rows, int64_t n, int64_t stride) {
    REAL factor = (REAL)plan->factor;
    double energy = 0;
    if (plan->likelihood == CATEGORICAL) {
        N(categorical)(z, y, factor, work, d, outputs, n, stride);
    } else if (plan->likelihood == LEARNED_NORMAL) {
        energy = N(learned_normal)(plan, z, y, log_noise, slope, work, d, rows, n, stride);
    } else {
        int64_t apart = plan->columns * stride;
        memset(work, 0, n * sizeof(REAL));
        for (int64_t at = 0; at < apart; at += stride) {
            if (plan->likelihood == BERNOULLI) N(bernoulli)(z + at, y + at, factor, work, d + at, n);
            else if (plan->likelihood == NORMAL) N(normal)(z + at, y + at, factor, work, d + at, n);
            else N(heteroscedastic)(z + at, z + apart + at, y + at, factor, work, d + at, d + apart + at, n);
        }
    }
    for (int64_t c = 0; c < outputs && rows < n; c++) memset(d + c * stride + rows, 0, (n - rows) * sizeof(REAL));
    return plan->likelihood == LEARNED_NORMAL ? energy : plan->factor * N(sum_of_rows)(work, rows);
}

/* ---- one chain */

static __attribute__((noinline)) double N(prior)(const plan_t *plan, const REAL *restrict theta, REAL *restrict grad) {
    const REAL *mean = plan->mean, *precision = plan->precision;
    int64_t P = plan->parameters, j = 0;
    if (!mean) {
        if (grad) memset(grad, 0, P * sizeof(REAL));
        return 0;
    }
    if (grad) {
        for (j = 0; j < P; j++) grad[j] = precision[j] * (theta[j] - mean[j]);
    }
    double total[8] = {0};
    for (j = 0; j + 8 <= P; j += 8) {
        for (int k = 0; k < 8; k++) {
            double off = (double)theta[j + k] - mean[j + k];
            total[k] += precision[j + k] * off * off;
        }
    }
    for (; j < P; j++) {
        double off = (double)theta[j] - mean[j];
        total[0] += precision[j] * off * off;
    }
    return 0.5 * (((total[0] + total[1]) + (total[2] + total[3])) + ((total[4] + total[5]) + (total[6] + total[7])));
}

/* U(theta), and its gradient unless `grad` is null */
static double N(chain)(const plan_t *plan, const REAL *theta, REAL *grad, REAL *scratch) {
    const layer_t *layers = plan->layer;
    int64_t depth = plan->layers, stride = plan->block, inputs = layers[0].in, outputs = layers[depth - 1].out;
    int64_t noise = plan->parameters - plan->scales;
    double energy = plan->constant + N(prior)(plan, theta, grad);
    for (int64_t first = 0; first < plan->rows; first += stride) {
        int64_t rows = plan->rows - first < stride ? plan->rows - first : stride;
        int64_t n = (rows + STRIP - 1) / STRIP * STRIP;
        const REAL *x = (const REAL *)plan->x + first * inputs, *y = (const REAL *)plan->y + first * plan->columns;
        REAL *work = scratch, *delta = scratch + 4 * stride, *other = delta + plan->widest * stride;
        REAL *place = other + plan->widest * stride;
        REAL *a[plan->layers], *derivative[plan->layers];
        for (int64_t l = 0; l < depth; l++) {
            const layer_t *layer = layers + l;
            a[l] = place;
            place += layer->out * stride;
            derivative[l] = place;
            if (layer->activation == SILU || layer->activation == SOFTPLUS) place += layer->out * stride;
            const REAL *bias = layer->bias < 0 ? 0 : theta + layer->bias;
            N(product)(theta + layer->weight, layer->in, 1, layer->in, layer->out, bias, l ? a[l - 1] : x, a[l], n,
                       stride);
            N(activate)(layer, a[l], derivative[l], n, stride);
        }
        energy += N(likelihood)(plan, a[depth - 1], y, theta + noise, grad ? grad + noise : 0, work, delta, outputs, rows,
                                n, stride);
        for (int64_t l = depth - 1; grad && l >= 0; l--) {
            const layer_t *layer = layers + l;
            REAL *g = grad + layer->weight, *g_bias = layer->bias < 0 ? 0 : grad + layer->bias;
            N(deactivate)(layer, a[l], derivative[l], delta, n, stride, g_bias);
            if (l == 0 && plan->by_rows) {
                N(outer)(delta, (const REAL *)plan->x_rows + first * inputs, layer->out, inputs, rows, stride, g);
            } else {
                N(gram)(delta, l ? a[l - 1] : x, layer->out, layer->in, n, stride, g);
            }
            if (l) {
                N(product)(theta + layer->weight, 1, layer->in, layer->out, layer->in, 0, delta, other, n, stride);
                REAL *kept = delta;
                delta = other;
                other = kept;
            }
        }
    }
    return energy;
}

#include "walk.c"

#undef VEC
#undef WORDS
#undef LANES
#undef STRIP
#undef ROUND
#undef LN2_HIGH
#undef LN2_LOW
#undef EXPONENT_PLACE
#undef ONE_BITS
#undef FRACTION_MASK
#undef LARGEST_EXPONENT
#undef SATURATED
#undef TANH_TERMS
#undef EACH
#undef ACTIVATION
#undef BACK

#endif
