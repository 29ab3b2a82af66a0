/* web.h — how every transfer of libcurl begins here.
 *
 * Only http and https; no name and password inside an address; no redirect is followed by itself: who asks looks at where it leads; no ~/.netrc; no signals,
 * as several threads fetch. What depends on the purpose (proxies, limits, where bytes go) is set afterwards.
 */
#ifndef CYGNET_WEB_H
#define CYGNET_WEB_H

#include <curl/curl.h>

#include "cygnet.h"

static inline void web_begin(CURL *c, const char *url) {
  curl_easy_setopt(c, CURLOPT_URL, url);
#if LIBCURL_VERSION_NUM >= 0x075500
  curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  curl_easy_setopt(c, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
  curl_easy_setopt(c, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
  curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(c, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
  curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(c, CURLOPT_USERAGENT, "cygnet/" CYGNET_VERSION);
}

#endif
