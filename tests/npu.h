/* npu.h — tests on the emulated NPU (tests/acl_emu): each in a child process, because a process can open one profile only.
 *
 *   static void body(void) { open the device, assert ... npu_emu()->counts(&c) ... }
 *   static void test_it(void **state) { (void)state; npu_each_profile(body); }
 *
 * A failed assertion in body ends its child and fails the test with the profile's name. The parent must not have threads yet. Nothing is
 * opened before body opens it: acl_open finds the libraries by ASCEND_HOME_PATH, which is set for it.
 *
 * NPU_REAL=PROFILE in the environment: on this machine's own CANN and NPU, whose nearest profile that is; the others are passed over. Then npu_emu does and
 * knows nothing, so only tests of results mean something (tools/ascend_first_day.sh has the list).
 */
#ifndef CYGNET_TESTS_NPU_H
#define CYGNET_TESTS_NPU_H

#include <stdbool.h>

#include "acl_emu/acl_emu.h"

enum { NPU_PROFILES = 5 };
extern const char *const npu_profiles[NPU_PROFILES]; /* A2-8.1, A2-8.5, A2-9.1, A3-9.1, 310P-8.5 */

void npu_each_profile(void (*body)(void));                 /* in debug builds two of them, unless NPU_ALL=1 is in the environment */
void npu_profile(const char *profile, void (*body)(void)); /* one */
const char *npu_folder(const char *profile);               /* what ASCEND_HOME_PATH is set to; a ring of 8 */
const char *npu_current(void);                             /* in a body: the profile */
/* The emulator of this process; opens libascendcl.so when nobody has yet. NULL outside of a body. */
const struct acl_emu *npu_emu(void);
/* CYGNET_TEST_BACKEND=ascend: tests of engines, which are written for any device, open theirs on the emulated NPU of CYGNET_TEST_PROFILE (A2-8.5), after
 * npu_use. They have one engine after the other in one process, so it is one profile. */
bool npu_asked(void);
void npu_use(void);
/* Fails the test unless nothing is alive, queued, or was violated. */
void npu_check_clean(void);

#endif
