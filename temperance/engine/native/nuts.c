/* Transitions of the no-U-turn sampler, trajectories that double until they turn. The same walk as that of
   temperance/inference/hamiltonian/nuts.py, where it is explained. Included by walk.c, once for each precision. */

#ifndef LARGEST_GAIN
#define LARGEST_GAIN 1000.0
enum { WALKING, TURNED, DIVERGED, FELL }; /* fell: to where the energy is no finite number */

static inline double log_add(double a, double b) {
    double high = a > b ? a : b, low = a > b ? b : a;
    return low == -INFINITY ? high : high + log1p(exp(low - high));
}

/* Uniform number i of a transition, strictly between 0 and 1: a function of its key (SplitMix64). */
static inline double fortune(uint64_t key, uint64_t i) {
    uint64_t z = key + (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return ((double)(z >> 12) + 0.5) * 0x1p-52;
}
#endif

/* Whether a stretch with these end momenta, and this sum of momenta less `before`, has begun to turn. */
static __attribute__((noinline)) int N(turning)(const REAL *left, const REAL *right, const REAL *sum,
                                                const REAL *before, const REAL *inverse_mass, int64_t size) {
    REAL one[8] = {0}, two[8] = {0};
    int64_t j = 0;
    for (; j + 8 <= size; j += 8) {
        for (int k = 0; k < 8; k++) {
            REAL l = left[j + k], r = right[j + k];
            REAL ahead = inverse_mass[j + k] * (sum[j + k] - before[j + k] - (REAL)0.5 * (l + r));
            one[k] += l * ahead;
            two[k] += r * ahead;
        }
    }
    double first = 0, second = 0;
    for (int k = 0; k < 8; k++) {
        first += one[k];
        second += two[k];
    }
    for (; j < size; j++) {
        REAL ahead = inverse_mass[j] * (sum[j] - before[j] - (REAL)0.5 * (left[j] + right[j]));
        first += left[j] * ahead;
        second += right[j] * ahead;
    }
    return first <= 0 || second <= 0;
}

typedef struct {
    REAL *theta, *p, *grad;                /* the end that grows */
    REAL *chosen, *chosen_grad, *sum;      /* a leaf by its weight, and the sum of momenta */
    REAL *halves;                          /* depth pairs of vectors: where balanced halves begin */
    const REAL *inverse_mass;
    uint64_t key, luck;                    /* which uniform numbers the leaves have */
    double step, inverse_temperature, start;
    double energy, weight, chances;
    int64_t leapfrogs, end;
} N(stretch_t);

static void N(stretch)(const plan_t *plan, N(stretch_t) *s, int64_t depth, REAL *scratch) {
    int64_t P = plan->parameters, closed;
    size_t bytes = (size_t)P * sizeof(REAL);
    memset(s->sum, 0, bytes);
    s->weight = -INFINITY;
    s->energy = NAN;
    s->chances = 0;
    s->leapfrogs = 0;
    s->end = WALKING;
    for (int64_t leaf = 0; leaf < (int64_t)1 << depth; leaf++) {
        double kinetic, energy = N(leap)(plan, s->theta, s->p, s->grad, s->inverse_mass, s->step,
                                         s->inverse_temperature, 1, &kinetic, scratch);
        double gain = s->inverse_temperature * energy + kinetic - s->start;
        s->leapfrogs++;
        if (!(gain <= LARGEST_GAIN)) {
            s->end = isfinite(energy) ? DIVERGED : FELL;
            return;
        }
        s->chances += gain > 0 ? exp(-gain) : 1.0;
        s->weight = log_add(s->weight, -gain);
        if (leaf == 0 || log(fortune(s->key, s->luck + (uint64_t)leaf)) < -gain - s->weight) {
            memcpy(s->chosen, s->theta, bytes);
            memcpy(s->chosen_grad, s->grad, bytes);
            s->energy = energy;
        }
        N(add_scaled)(s->sum, s->p, 1, P);
        int64_t place = __builtin_popcountll((unsigned long long)leaf >> 1);
        if (leaf % 2 == 0) {
            REAL *first = s->halves + 2 * place * P, *before = first + P;
            memcpy(first, s->p, bytes);
            for (int64_t j = 0; j < P; j++) before[j] = s->sum[j] - s->p[j];
            continue;
        }
        closed = __builtin_ctzll(~(unsigned long long)leaf);
        for (int64_t k = place; k > place - closed; k--) {
            REAL *first = s->halves + 2 * k * P;
            if (N(turning)(first, s->p, s->sum, first + P, s->inverse_mass, P)) {
                s->end = TURNED;
                return;
            }
        }
    }
}

#define VECTORS(depth) (13 + 2 * (depth)) /* that a trajectory needs beside its start */

/* One transition from theta with momentum p and gradient grad, in place. told: energy at the end, sum of the chances of
   acceptance, leapfrog steps, whether it diverged (1), or fell off an edge of the support (2). */
static void N(transition)(const plan_t *plan, REAL *theta, REAL *p, REAL *grad, const REAL *inverse_mass, REAL *room,
                          const double *given, uint64_t key, int64_t most, double *told, REAL *scratch) {
    int64_t P = plan->parameters;
    size_t bytes = (size_t)P * sizeof(REAL);
    REAL *ends[2][3], *chosen = room + 6 * P, *chosen_grad = chosen + P, *sum = chosen_grad + P, *zero = sum + P;
    REAL *new_chosen = zero + P, *new_chosen_grad = new_chosen + P, *new_sum = new_chosen_grad + P;
    const REAL *start[3] = {theta, p, grad};
    for (int e = 0; e < 2; e++) {
        for (int k = 0; k < 3; k++) {
            ends[e][k] = room + (3 * e + k) * P;
            memcpy(ends[e][k], start[k], bytes);
        }
    }
    memcpy(chosen, theta, bytes);
    memcpy(chosen_grad, grad, bytes);
    memcpy(sum, p, bytes);
    memset(zero, 0, bytes);
    double energy = given[2], weight = 0, chances = 0;
    double first = given[1] * energy + N(kinetic)(p, inverse_mass, P);
    int64_t leapfrogs = 0, diverged = 0;
    uint64_t luck = 0;
    for (int64_t depth = 0; depth < most; depth++) {
        int ahead = fortune(key, luck) < 0.5;
        N(stretch_t) s = {ends[ahead][0], ends[ahead][1], ends[ahead][2], new_chosen, new_chosen_grad, new_sum,
                          new_sum + P, inverse_mass, key, luck + 2, ahead ? given[0] : -given[0], given[1], first,
                          0, 0, 0, 0, 0};
        N(stretch)(plan, &s, depth, scratch);
        chances += s.chances;
        leapfrogs += s.leapfrogs;
        if (s.end != WALKING) {
            diverged = s.end == DIVERGED ? 1 : s.end == FELL ? 2 : 0;
            break;
        }
        if (log(fortune(key, luck + 1)) < s.weight - weight) {
            memcpy(chosen, new_chosen, bytes);
            memcpy(chosen_grad, new_chosen_grad, bytes);
            energy = s.energy;
        }
        weight = log_add(weight, s.weight);
        N(add_scaled)(sum, new_sum, 1, P);
        if (N(turning)(ends[0][1], ends[1][1], sum, zero, inverse_mass, P)) break;
        luck += 2 + ((uint64_t)1 << depth);
    }
    memcpy(theta, chosen, bytes);
    memcpy(grad, chosen_grad, bytes);
    told[0] = energy, told[1] = chances, told[2] = (double)leapfrogs, told[3] = (double)diverged;
}

void N(temperance_nuts)(const plan_t *plan, REAL *theta, REAL *p, REAL *grad, const REAL *inverse_mass, REAL *room,
                        const double *given, const uint64_t *keys, double *told, int64_t most, int64_t chains,
                        int threads) {
    /* given: step, 1/T and energy of each chain */
    FOR_CHAINS(N(transition)(plan, theta + c * P, p + c * P, grad + c * P, inverse_mass + c * P,
                             room + c * VECTORS(most) * P, given + 3 * c, keys[c], most, told + 4 * c, scratch))
}
