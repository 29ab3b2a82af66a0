/* workload.h — what is asked. Made as a whole before anything is sent; the same options give the same requests.
 *
 * Texts are common English words, each of them one token of most vocabularies: a prompt that is to have n tokens has n words. What it really
 * has (BOS, a chat's template) the server says. Lengths with a range ratio r < 1 are drawn evenly from [max(1, floor(r * n)), n].
 */
#ifndef CYGNET_LOAD_WORKLOAD_H
#define CYGNET_LOAD_WORKLOAD_H

#include "base/err.h"

enum workload_kind {
  WORKLOAD_RANDOM, /* independent prompts */
  WORKLOAD_PREFIX, /* groups of prompts that begin alike */
  WORKLOAD_TURNS,  /* conversations: each turn sends all that was said */
  WORKLOAD_IMAGE,  /* pictures and a question */
  WORKLOAD_FILE,   /* prompts of a file */
};

struct workload_options {
  enum workload_kind kind;
  uint64_t seed;
  int requests;                /* turns count; 0 with WORKLOAD_FILE: all that it has */
  int input_tokens;            /* of a prompt, a question, or what is new in a turn */
  int output_tokens;           /* WORKLOAD_FILE: 0 as the file says */
  double range_ratio;          /* of both; 1: exactly as many */
  int groups, per_group;       /* WORKLOAD_PREFIX: requests = groups * per_group */
  int system_tokens;           /* and what each group begins with */
  int turns;                   /* WORKLOAD_TURNS: requests is a multiple of it */
  int pictures, width, height; /* WORKLOAD_IMAGE */
  bool jpeg;                   /* else PNG */
  const char *path;            /* WORKLOAD_FILE */
};

struct load_request {
  char *text;         /* owned; what the user says */
  const char *system; /* what stands before the conversation; NULL: nothing */
  int input_tokens;   /* words of text and system; 0: nobody counted (files) */
  int output_tokens;  /* to be asked for */
  int group;          /* of prompts that begin alike, or the conversation; -1: alone */
  int turn;           /* from 0 */
  int next;           /* the request that goes on from this one's answer; -1: none */
  char **pictures;    /* owned, and each: data:image/... addresses */
  int n_pictures;
};

struct workload {
  struct load_request *v; /* owned; turns of a conversation follow one another */
  int n;
  char **systems; /* owned, and each; requests borrow from them */
  int n_systems;
};

/* 0, or -1 and *e: a file that cannot be read or has no prompt, pictures in a build without them. */
int workload_make(struct workload *w, const struct workload_options *o, struct err *e);
void workload_free(struct workload *w);

/* n words, owned. Different (seed, number): different words. */
char *workload_words(uint64_t seed, uint64_t number, int n);
/* Drawn evenly from [max(1, floor(ratio * n)), n]. lane: one for each purpose. */
int workload_length(uint64_t seed, uint64_t number, unsigned lane, int n, double ratio);

#endif
