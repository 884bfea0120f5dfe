/* Trajectories of microcanonical dynamics, at a speed that never changes. The same walk as that of
   temperance/inference/hamiltonian/mclmc.py, where it is explained. Included by walk.c, once for each precision. */

/* u <- u / |u| */
LOOP N(to_unit)(REAL *restrict u, int64_t size) {
    double total[4] = {0, 0, 0, 0};
    int64_t j = 0;
    for (; j + 4 <= size; j += 4) {
        for (int k = 0; k < 4; k++) total[k] += (double)u[j + k] * u[j + k];
    }
    for (; j < size; j++) total[0] += (double)u[j] * u[j];
    REAL scale = (REAL)(1.0 / sqrt((total[0] + total[1]) + (total[2] + total[3])));
    for (j = 0; j < size; j++) u[j] *= scale;
}

/* Half a step in which the slope turns the direction u; what the kinetic energy gains by it, over d - 1. */
static __attribute__((noinline)) double N(turn)(REAL *restrict u, const REAL *restrict grad,
                                                const REAL *restrict root, double inverse_temperature, double pace,
                                                int64_t size) {
    double squares[4] = {0, 0, 0, 0}, products[4] = {0, 0, 0, 0};
    int64_t j = 0;
    for (; j + 4 <= size; j += 4) {
        for (int k = 0; k < 4; k++) {
            double slope = (double)root[j + k] * grad[j + k];
            squares[k] += slope * slope;
            products[k] += slope * u[j + k];
        }
    }
    for (; j < size; j++) {
        double slope = (double)root[j] * grad[j];
        squares[0] += slope * slope;
        products[0] += slope * u[j];
    }
    double norm = sqrt((squares[0] + squares[1]) + (squares[2] + squares[3]));
    if (norm == 0) return 0; /* level ground */
    double along = -((products[0] + products[1]) + (products[2] + products[3])) / norm;
    double delta = 0.5 * pace * norm * inverse_temperature / (double)(size - 1);
    double fade = exp(-delta); /* numerator and denominator times 2 exp(-delta): nothing overflows */
    REAL keep = (REAL)(2 * fade), down = (REAL)(-(1 - fade) * (1 + fade + along * (1 - fade)) / norm);
    for (j = 0; j < size; j++) u[j] = keep * u[j] + down * root[j] * grad[j];
    N(to_unit)(u, size);
    return delta - log(2.0) + log(1 + fade * fade + along * (1 - fade * fade));
}

/* length steps of theta, with direction u and gradient grad, in place. noise: vectors by which the direction is
   forgotten a little after each of the first `noises` steps. told: U at the end, and the kinetic energy gained. */
static void N(glide)(const plan_t *plan, REAL *theta, REAL *u, REAL *grad, const REAL *root, const REAL *noise,
                     int64_t noises, double forget, const double *given, int64_t length, double *told, REAL *scratch) {
    int64_t P = plan->parameters;
    double pace = given[0], inverse_temperature = given[1], energy = NAN, gained = 0;
    for (int64_t s = 0; s < length; s++) {
        gained += N(turn)(u, grad, root, inverse_temperature, pace, P);
        N(drift)(theta, u, root, (REAL)pace, P);
        energy = N(chain)(plan, theta, grad, scratch);
        gained += N(turn)(u, grad, root, inverse_temperature, pace, P);
        if (s < noises) {
            N(add_scaled)(u, noise + s * P, (REAL)forget, P);
            N(to_unit)(u, P);
        }
    }
    told[0] = energy, told[1] = gained * (double)(P - 1);
}

void N(temperance_microcanonical)(const plan_t *plan, REAL *theta, REAL *u, REAL *grad, const REAL *root,
                                  const REAL *noise, double forget, const double *given, double *told, int64_t noises,
                                  int64_t length, int64_t chains, int threads) {
    /* given: distance of a step and 1/T of each chain */
    FOR_CHAINS(N(glide)(plan, theta + c * P, u + c * P, grad + c * P, root + c * P, noise + c * noises * P, noises,
                        forget, given + 2 * c, length, told + 2 * c, scratch))
}
