/* encode.h — pictures and sounds of running requests go through the model's encoders, a few units in every step.
 *
 *   request's bank, held and not filled ──job──► encoder's units ──► rows ──► the store, or ops->fill ──► filled: who waits goes on
 *
 * Rules
 *   1. One job at a time: what the first request in the order needs first. While all of a job is less than one block of rows, others' media
 *      of its kind join it. Neighbouring pictures that share a bank are done one after the other, as many at once as the encoder takes.
 *   2. A job knows entries by their keys, and holds none. Where nobody holds any entry of it any more it is given up; a request that was
 *      sent back and came again finds it going on.
 *   3. Decoding never waits for an encoder longer than a prompt row's share of a step (engine.c), and never touches one.
 *   4. When a unit is done changes no bit of what comes out.
 *   5. Rows that are no finite numbers, and units in which the device failed, fail those who wait for them, nobody else.
 */
#ifndef CYGNET_ENCODE_H
#define CYGNET_ENCODE_H

#include "kv/banks.h"
#include "models/encoder.h"

struct cygnet;

struct encode_item {
  struct bank_key key;       /* of the entry that it goes to */
  int first_row;             /* its rows in there */
  const struct media *media; /* one reference */
  uint64_t number;           /* of the request that wants it first */
};

struct encode {
  struct encoder *x; /* of the job; NULL: there is none */
  struct encode_item items[ENCODER_ITEMS_MAX];
  int n_items;
  bool is_complete; /* all rows are there; they are being stored */
  int item, row;    /* that one is stored next, from that of its rows on */
  uint64_t serial;  /* of the entry that the rows before went to */
  double ms;        /* so far */
  /* of a bank with several pictures, of which some are stored: */
  uint64_t partial_serial; /* 0: there is none */
  int n_stored;            /* pictures */
  int block;               /* rows that are stored at once, 1 .. ENCODER_ROWS */
  struct tensor host;      /* [ENCODER_ROWS, hidden]: of these, where the host reads them (device.h fetch) */
  int64_t slots[ENCODER_ROWS];
};

/* c->model has encoders. Closed before it; fine on a zeroed one. */
int encode_open(struct cygnet *c, struct err *e);
void encode_close(struct cygnet *c);
/* A unit of work, which is begun if need be; false: there is nothing to encode. */
bool encode_unit(struct cygnet *c);
/* Give up a job that nobody wants. Before every unit, behind admission; and with `all` when the engine closes. */
void encode_settle(struct cygnet *c, bool all);

#endif
